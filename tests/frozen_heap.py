"""Loaded last by a server that processes are forked from: what it has loaded stays as it is.

A process whose garbage collector walks all of that copies each page that it lies on: that took a
rank longer than everything else that it does before it trains.
"""

import gc

gc.collect()
gc.freeze()
