"""All errors of the view, in one tree.

* ViewError
  x HttpError  a request that gets an error answer; has the HTTP status
"""

from __future__ import annotations


class ViewError(Exception):
    """Root of the tree above."""


class HttpError(ViewError):
    """An error answer to a request.

    :param status: HTTP status of the answer.
    :param message: for the reader of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class ReaderStalled(ViewError):
    """A client does not read its answer. The view cuts its connection.

    :param path: the path of its request.
    """

    def __init__(self, path: str, after_s: float) -> None:
        super().__init__(f"the reader of {path} took nothing for {after_s:g} s")
