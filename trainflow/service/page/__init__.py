"""The live page: jobs, and how one goes, in a browser.

The files under ``static`` are served as they are. Nothing is built, and nothing is fetched from
elsewhere, so the page works where there is no way out.
"""
