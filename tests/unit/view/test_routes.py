"""The router: exact paths, and redirections of nearly right ones."""

from __future__ import annotations

import pytest
from muster_view.rest.routes import Routes

ROUTES = Routes([("/ws/v1/clusters", "clusters"), ("/ws/v1/partition/{p}/queue/{q}", "queue"), ("/ws/v1/a/{p}/b", "b")])


def test_parameters_are_taken_as_they_are() -> None:
    match = ROUTES.find("/ws/v1/partition/Default/queue/root.A")
    assert match is not None
    assert match.endpoint == "queue"
    assert match.parameters == {"p": "Default", "q": "root.A"}


@pytest.mark.parametrize(
    "path", ["/", "", "/ws/v1", "/ws/v1/clusters/", "/ws/v1/Clusters", "/ws/v1/partition//queue/x", "/ws/v1/a/x/b/c"]
)
def test_other_paths_are_not_found(path: str) -> None:
    assert ROUTES.find(path) is None


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/ws/v1/clusters/", "/ws/v1/clusters"),
        ("/WS/v1/Clusters", "/ws/v1/clusters"),
        ("//ws/v1//clusters", "/ws/v1/clusters"),
        ("/ws/v1/Partition/Default/QUEUE/root.A/", "/ws/v1/partition/Default/queue/root.A"),
    ],
)
def test_nearly_right_paths_are_sent_on_with_their_parameters_unchanged(path: str, right: str) -> None:
    near, match = ROUTES.canonical(path), ROUTES.find(right)
    assert near is not None
    assert match is not None
    assert (near.path, near.endpoint) == (right, match.endpoint)


@pytest.mark.parametrize("path", ["/ws/v1/clusters", "/ws/v1/cluster", "/ws/v1/a/x/c", "/"])
def test_right_and_unknown_paths_are_not_sent_on(path: str) -> None:
    assert ROUTES.canonical(path) is None
