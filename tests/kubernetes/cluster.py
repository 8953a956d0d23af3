"""A Kubernetes control plane for tests: found, or built and started.

1. ``MUSTER_TEST_KUBECONFIG``: the path of a kubeconfig. The cluster must answer, and its user may do everything.
   Tests add nodes to it that do not exist, and play their kubelets (kubelets.py). They make and remove namespaces,
   priority classes and nodes of their own.
2. etcd, kube-apiserver and kube-controller-manager as processes on this machine. They, and kubectl, are one program,
   ``control``, which is built from Go modules once and kept in ``.cache/kubernetes`` (10 to 20 minutes on two cores).
3. None: :class:`servers.NoServer` says what is missing.

As a command, for a control plane that lasts::

    python tests/kubernetes/cluster.py build                 # the program only
    python tests/kubernetes/cluster.py start DIRECTORY       # prints the path of a kubeconfig
    python tests/kubernetes/cluster.py stop DIRECTORY
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kubernetes.api import Api
from muster_replay.local_process import free_ports
from servers import NoServer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VARIABLE = "MUSTER_TEST_KUBECONFIG"
VERSION = "v1.36.1"
ADMIN_TOKEN = "token-of-the-admin"
# Requests of service accounts: what each of them does, and what it may not do.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
READY_S = 300.0
_CONTROLLERS = (
    "deployment-controller,replicaset-controller,daemonset-controller,statefulset-controller,job-controller,"
    "namespace-controller,garbage-collector-controller,pod-garbage-collector-controller,disruption-controller,"
    "resourcequota-controller,serviceaccount-controller,persistentvolume-binder-controller,"
    "persistentvolume-protection-controller,persistentvolumeclaim-protection-controller"
)


def program() -> Path:
    """The built control plane. Its name has the digest of what it is built from. Raises NoServer."""
    digest = hashlib.sha256(VERSION.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((HERE / "control" / name).read_bytes())
    folder = ROOT / ".cache" / "kubernetes"
    built = folder / f"control-plane-{digest.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if built.exists():
            return built
        go = shutil.which("go")
        if go is None:
            raise NoServer(f"no Kubernetes: {VARIABLE} is not set, and there is no Go to build a control plane")
        print("building a Kubernetes control plane: 10 to 20 minutes, once", file=sys.stderr)
        number = "k8s.io/component-base/version"
        major, minor = VERSION.removeprefix("v").split(".")[:2]
        flags = f"-s -w -X {number}.gitVersion={VERSION} -X {number}.gitMajor={major} -X {number}.gitMinor={minor}"
        unfinished = folder / f"unfinished-{built.name}"
        command = [go, "build", "-buildvcs=false", "-ldflags", flags, "-o", str(unfinished), "."]
        # (Static, like the shim: what both have of Go's own packages is compiled once.)
        environment = {**os.environ, "CGO_ENABLED": "0"}
        done = subprocess.run(command, cwd=HERE / "control", env=environment, check=False)
        if done.returncode:
            raise NoServer("no Kubernetes: the control plane could not be built (see above)")
        for old in folder.glob("control-plane-*"):
            old.unlink()
        unfinished.rename(built)
        return built


def kubectl(kubeconfig: Path, *arguments: str, given: str = "") -> str:
    """What kubectl of the control plane's version prints. ``given``: its input. Raises CalledProcessError."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBERC": "off"}
    command = [str(program()), "kubectl", *arguments]
    return subprocess.run(
        command, env=environment, input=given, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    ).stdout


class ControlPlane:
    """A control plane's processes. Their data, logs and kubeconfigs are in a directory.

    :ivar kubeconfig: of the admin; ``audit_log``: the requests of service accounts, a JSON object in each line.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "admin.kubeconfig"
        self.audit_log = directory / "audit.log"
        self._note = directory / "processes.json"
        self._program = program()
        self._pids: dict[str, int] = {}
        if self._note.exists():
            content = json.loads(self._note.read_text())
            self._ports, self._pids = content["ports"], content["pids"]
        else:
            directory.mkdir(parents=True, exist_ok=True)
            self._ports = free_ports(4)

    @property
    def pids(self) -> dict[str, int]:
        """The running processes: etcd, apiserver, controllers. Each one is a session of its own."""
        return dict(self._pids)

    def start(self) -> None:
        """Returns when the apiserver is ready."""
        self._write_files()
        self.start_etcd()
        self.start_apiserver()
        self.start_controllers()

    def stop(self) -> None:
        """Ends all processes at once: in order it would take 15 s, and a killed etcd loses nothing either."""
        for part in reversed(list(self._pids)):
            self.kill(part)
        self._note.unlink(missing_ok=True)

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[:2])
        self._begin(
            "etcd", "--data-dir=etcd", "--unsafe-no-fsync", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--log-level=warn",
        )  # fmt: skip

    def start_apiserver(self) -> None:
        """Starts the apiserver, also again after its end. Returns when it is ready."""
        self._begin(
            "apiserver", f"--etcd-servers=http://127.0.0.1:{self._ports[0]}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self._ports[2]}", "--cert-dir=pki",
            "--token-auth-file=pki/tokens.csv", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=pki/accounts.pub",
            "--service-account-signing-key-file=pki/accounts.key", "--service-cluster-ip-range=10.96.0.0/16",
            # Fake nodes have no taints of conditions, and pods no tokens.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--endpoint-reconciler-type=none",
            "--audit-policy-file=audit-policy.json", "--audit-log-path=audit.log", "--audit-log-mode=blocking",
            "--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000", "--v=1",
        )  # fmt: skip
        api = Api(self.kubeconfig)
        deadline = time.monotonic() + READY_S
        while not api.ready():
            if not _alive(self._pids["apiserver"]) or time.monotonic() > deadline:
                log = (self.directory / "apiserver.log").read_text(errors="replace")[-2000:]
                raise NoServer(f"the apiserver is not ready:\n{log}")
            time.sleep(0.2)
        api.close()

    def start_controllers(self) -> None:
        self._begin(
            "controllers", "--kubeconfig=admin.kubeconfig", "--authentication-kubeconfig=admin.kubeconfig",
            "--authorization-kubeconfig=admin.kubeconfig", "--bind-address=127.0.0.1",
            f"--secure-port={self._ports[3]}", "--leader-elect=false", "--authentication-skip-lookup=true",
            "--kube-api-qps=500", "--kube-api-burst=1000",
            "--service-account-private-key-file=pki/accounts.key", f"--controllers={_CONTROLLERS}", "--v=1",
        )  # fmt: skip

    def kill(self, part: str) -> None:
        """Kills a process: etcd, apiserver or controllers."""
        self.end(part, signal.SIGKILL)

    def end(self, part: str, how: signal.Signals = signal.SIGTERM) -> None:
        pid = self._pids.pop(part, 0)
        if not pid or not _alive(pid):
            return
        os.kill(pid, how)
        deadline = time.monotonic() + 15
        while _alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._write_note()

    def _begin(self, part: str, *flags: str) -> None:
        with (self.directory / f"{part}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._program), part, *flags],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pids[part] = process.pid
        self._write_note()

    def _write_note(self) -> None:
        self._note.write_text(json.dumps({"ports": self._ports, "pids": self._pids}))

    def _write_files(self) -> None:
        pki = self.directory / "pki"
        pki.mkdir(parents=True, exist_ok=True)
        if not (pki / "accounts.key").exists():
            key, public = str(pki / "accounts.key"), str(pki / "accounts.pub")
            subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
            subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
        (pki / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,admin,system:masters\n")
        (self.directory / "audit-policy.json").write_text(json.dumps(_AUDIT))
        cluster = {"server": f"https://127.0.0.1:{self._ports[2]}", "insecure-skip-tls-verify": True}
        self.kubeconfig.write_text(json.dumps(kubeconfig_of(cluster, ADMIN_TOKEN)))


def kubeconfig_of(cluster: dict[str, object], token: str) -> dict[str, object]:
    """A kubeconfig of a cluster as a kubeconfig has it, with a token."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _alive(pid: int) -> bool:
    """Tells whether a process runs. Children that have ended are collected."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass  # another process's child
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="a Kubernetes control plane for tests")
    parser.add_argument("command", choices=["build", "start", "stop"])
    parser.add_argument("directory", nargs="?", type=Path)
    given = parser.parse_args()
    if given.command == "build":
        print(program())
        return
    if given.directory is None:
        parser.error("expected a directory")
    plane = ControlPlane(given.directory.resolve())
    if given.command == "start":
        plane.start()
        print(plane.kubeconfig)
    else:
        plane.stop()


if __name__ == "__main__":
    main()
