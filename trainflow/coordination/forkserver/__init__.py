"""Workers are forked from a process that has imported already what takes them seconds.

Each node's Keeper runs such a server. Ray starts ``launcher`` where it would start Python for a
worker; that asks the server for a fork in its place. Without a server, and wherever anything isn't
as it would have been, it starts Python as Ray would have. See docs/adr/0039.
"""
