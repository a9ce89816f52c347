"""Make the bucket that checkpoints go to, unless it is there.

Process: a container's only one.  Blocks: until the store answers.
"""

import sys

import s3fs


def main(name: str) -> None:
    """Make a bucket."""
    store = s3fs.S3FileSystem()
    if not store.exists(name):
        store.mkdir(name)


if __name__ == "__main__":
    main(sys.argv[1])
