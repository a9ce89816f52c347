"""The command line: `trainflow`."""
