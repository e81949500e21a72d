"""What the documentation shows and no test can run as it stands, and what checks it instead."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """Commands that need what a test does not have; each line of such a block begins with one of them."""

    commands: tuple[str, ...]
    why: str
    instead: str
    """The file of the repository that checks the same by other means."""


ELSEWHERE = {
    "acl": Elsewhere(
        (), "a command of Redis, which a test gives to a real one", "tests/flows/test_redis_topologies.py"
    ),
    "redis": Elsewhere(("redis-server",), "the stage has one already", "tests/docs/stages.py"),
    "make": Elsewhere(("make",), "it would run all tests inside of one", "tests/docs/test_blocks.py"),
    "demo": Elsewhere(("make demo",), "a test of its own runs it, to its end", "tests/e2e/test_demo.py"),
    "docker": Elsewhere(
        ("docker ", "echo "),
        "there is no Docker; what Compose describes is run as processes",
        "tests/deploy/test_compose_running.py",
    ),
    "systemd": Elsewhere(("sudo ",), "it changes the machine", "tests/deploy/test_systemd.py"),
    "kubectl": Elsewhere(
        ("kubectl ",), "there is no cluster; manifests are checked", "tests/deploy/test_kubernetes.py"
    ),
    "helm": Elsewhere(
        ("kubectl ", "helm "), "there is no cluster; the chart is rendered", "tests/deploy/test_helm.py"
    ),
}
