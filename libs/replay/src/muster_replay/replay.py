"""Plays a trace through a gateway and accounts for every task.

The steps: register → nodes → applications → asks → wait until nothing changes → ask for reasons → report. A task's
latency runs from the moment before its ask is given to the stream (waiting for room counts) until its allocation
arrives.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import structlog
from muster_client.access import PLAIN, Access
from muster_client.callbacks import Callbacks, Rejection
from muster_client.client import RmClient
from muster_client.clock import Clock, SystemClock
from muster_client.errors import BadAddress, ClientError, RegistrationRejected, StreamRefused
from muster_client.settings import ClientSettings
from muster_proto.si.v1 import si_pb2 as si
from muster_runtime.private_files import open_private
from muster_runtime.rm_status_text import REPLAY_KEY
from muster_runtime.terminal import Screen, marked, standard_error, write_json
from muster_si.constants import CPU, MEMORY
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from muster_replay.accounts import Accounts, percentile
from muster_replay.errors import ReplayFailed, TraceError
from muster_replay.report import ReplayReport, Utilisation, print_report, some
from muster_replay.rest import EventIdRange, PendingAsk, RestFront, rest_url
from muster_replay.trace import GPU, Trace, read_trace

log = structlog.get_logger(__name__)

_UNDECIDED = "WAITING_FOR_TURN"  # the scheduler has not tried the ask yet, so the replay keeps waiting
_POLL_S = 0.1
_PAUSE_S = 0.5  # before an unanswered question is repeated

# Errors that a retry does not cure.
_WRONG_CALL = (BadAddress, RegistrationRejected, StreamRefused, TraceError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to play a trace.

    :param chunk: items per message.
    :param asks_per_s: pace of the asks; 0: as fast as the gateway takes them.
    :param quiet_s: the replay asks for reasons after so long without a change, with all streams open.
    :param answer_timeout_s: limit for nodes and applications to be accepted.
    :param settle_timeout_s: limit for all tasks to be placed or to have a reason, from the last ask on.
    :param http: of the REST front; ``host:port`` alone is http.
    :param access: TLS and token, for both doors.
    :param rest_timeout_s: limit for the REST front's first answer, before anything is sent.
    :param follow_timeout_s: limit for the view and the publisher, which follow the log, to catch up with this client.
    :param rest_silence_s: the replay gives up if the REST front gives no answer for so long while the replay asks for
        reasons. Longer than a restart takes.
    """

    gateway: str = "127.0.0.1:9090"
    http: str = "http://127.0.0.1:9080"
    rm_id: str = "openb"
    chunk: int = 100
    asks_per_s: float = 0.0
    quiet_s: float = 1.5
    answer_timeout_s: float = 60.0
    settle_timeout_s: float = 120.0
    rest_timeout_s: float = 10.0
    follow_timeout_s: float = 60.0
    rest_silence_s: float = 30.0
    access: Access = PLAIN
    client: ClientSettings = field(default_factory=ClientSettings)


async def replay(
    directory: Path,
    options: ReplayOptions | None = None,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    on_sent: Callable[[int], Awaitable[None]] | None = None,
    afterwards: Callable[[ReplayReport, RmClient], Awaitable[None]] | None = None,
) -> ReplayReport:
    """Plays the trace in ``directory`` (nodes.csv.gz, pods.csv.gz, queues.yaml).

    :param progress: shows progress bars; None: none.
    :param on_sent: called after each message of asks with the number sent so far (chaos tests end services here).
    :param afterwards: called at the end, while the RM is still connected.

    Raises: BadAddress, TraceError, RegistrationFailed, RegistrationRejected, ReplayFailed, and the error that ended the
    client.
    """
    trace = read_trace(directory)
    return await _Replay(trace, options or ReplayOptions(), progress, clock or SystemClock(), on_sent, afterwards).run()


class _Replay:
    """One run. The callbacks keep the books; the steps wait until the books show their result."""

    def __init__(
        self,
        trace: Trace,
        options: ReplayOptions,
        progress: Progress | None,
        clock: Clock,
        on_sent: Callable[[int], Awaitable[None]] | None,
        afterwards: Callable[[ReplayReport, RmClient], Awaitable[None]] | None,
    ) -> None:
        self._trace, self._options, self._clock = trace, options, clock
        self._progress, self._on_sent, self._afterwards = progress, on_sent, afterwards
        self._books = Accounts(
            {task.name: task.resources for task in trace.tasks}, {node.name: node.resources for node in trace.nodes}
        )
        self._complaints: list[str] = []
        self._open_streams: set[str] = set()
        self._moved_at = clock.monotonic()
        self._bars: dict[str, TaskID] = {}
        self._http = rest_url(options.http)
        self._rest = RestFront(self._http, options.rm_id, options.access)
        self._rest_silent_since: float | None = None
        self._client = RmClient(
            options.gateway,
            options.rm_id,
            access=options.access,
            config=trace.queue_config,
            version="openb replay",
            extra_config={REPLAY_KEY: "true"},
            callbacks=Callbacks(
                on_allocated=self._on_allocated,
                on_released=self._on_released,
                on_rejected_allocation=self._on_rejected,
                on_application=self._on_application,
                on_node=self._on_node,
                on_stream=self._on_stream,
            ),
            settings=options.client,
            clock=clock,
        )

    async def run(self) -> ReplayReport:
        began = self._clock.monotonic()
        try:
            # 0. check that REST answers before anything is sent, not after minutes
            events_before = await self._events_before()
            # 1. register
            await self._client.register()
            # 2. nodes, and their answers
            nodes_s = await self._timed(self._send_nodes())
            # 3. applications, and their answers
            applications_s = await self._timed(self._send_applications())
            # 4. asks
            asks_s = await self._timed(self._send_asks())
            # 5. wait until nothing changes
            reasons = await self._settle()
            total_s = self._clock.monotonic() - began
            # 6. the report
            report = await self._report(reasons, events_before, (nodes_s, applications_s, asks_s, total_s))
            if self._afterwards:
                await self._afterwards(report, self._client)
            return report
        finally:
            await self._client.close()
            await self._rest.close()

    # ---- steps ---------------------------------------------------------------------------------------------------

    async def _send_nodes(self) -> None:
        self._bar("nodes", len(self._trace.nodes))
        for part in _chunks(self._trace.nodes, self._options.chunk):
            await self._client.send_nodes([node.as_node() for node in part])
        await self._answered("nodes", self._client.nodes_answered())

    async def _send_applications(self) -> None:
        applications = self._trace.as_applications()
        self._bar("applications", len(applications))
        for part in _chunks(applications, self._options.chunk):
            await self._client.send_applications(part)
        await self._answered("applications", self._client.applications_answered())

    async def _send_asks(self) -> None:
        tasks, chunk, pace = self._trace.tasks, self._options.chunk, self._options.asks_per_s
        self._bar("asks sent", len(tasks))
        self._bar("placed", len(tasks))
        began, sent = self._clock.monotonic(), 0
        for part in _chunks(tasks, chunk):
            if pace:
                await asyncio.sleep(max(0.0, began + sent / pace - self._clock.monotonic()))
            asks = [task.as_ask() for task in part]
            self._books.asked([task.name for task in part], self._clock.monotonic())
            await self._client.send_asks(asks)
            sent += len(part)
            self._advance("asks sent", len(part))
            if self._on_sent is not None:
                await self._on_sent(sent)

    async def _answered(self, subject: str, answers: Any) -> None:
        try:
            await asyncio.wait_for(self._or_failure(answers), self._options.answer_timeout_s)
        except TimeoutError:
            raise ReplayFailed(f"{subject}: not all answered within {self._options.answer_timeout_s:.0f} s") from None
        if self._complaints:
            raise ReplayFailed(f"{subject}: {some(self._complaints)}")

    async def _settle(self) -> dict[str, PendingAsk]:
        """Waits until every task is placed, rejected or pending with a lasting reason. Returns the reasons.

        The wait ends when REST lists exactly the asks for which this client has no answer, and nothing changed
        meanwhile.
        """
        deadline = self._clock.monotonic() + self._options.settle_timeout_s
        while True:
            await self._or_failure(self._quiet(deadline))
            moved_at, waiting = self._moved_at, self._books.open()
            reasons = await self._ask_why()
            lasting = (
                {key for key, pending_ask in reasons.items() if pending_ask.reason != _UNDECIDED}
                if reasons is not None
                else None
            )
            if reasons is not None and reasons.keys() == waiting == lasting and moved_at == self._moved_at:
                return reasons
            now = self._clock.monotonic()
            if not waiting:  # the scheduler is done; only the view must catch up
                deadline = min(deadline, now + self._options.follow_timeout_s)
            if now >= deadline:
                self._complaints.append("in the time allowed, REST did not show just the unanswered asks as pending")
                return reasons or {}
            await asyncio.sleep(_POLL_S)

    async def _quiet(self, deadline: float) -> None:
        """Returns after quiet_s without a change and with every stream open, or when all tasks have their answer."""
        while self._books.open():
            now = self._clock.monotonic()
            still_s = now - self._moved_at if len(self._open_streams) == 3 else 0.0
            if still_s >= self._options.quiet_s or now >= deadline:
                return
            await asyncio.sleep(min(_POLL_S, self._options.quiet_s))

    async def _ask_why(self) -> dict[str, PendingAsk] | None:
        try:
            reasons = await self._rest.pending()
        except (httpx.HTTPError, KeyError, ValueError) as error:
            self._rest_failed(error)
            await asyncio.sleep(_PAUSE_S)
            return None
        self._rest_silent_since = None
        return reasons

    def _rest_failed(self, error: Exception) -> None:
        """Raises ReplayFailed if the front has given no answer of any kind for too long."""
        now, reason = self._clock.monotonic(), _in_words(error)
        if not isinstance(error, httpx.TransportError):
            self._rest_silent_since = None  # the front answers, though with an error
            log.info("no reasons yet", error=reason)
        elif self._rest_silent_since is None:
            self._rest_silent_since = now
            log.warning("the REST front does not answer", http=self._http, error=reason)
        elif now - self._rest_silent_since >= self._options.rest_silence_s:
            raise ReplayFailed(
                f"the REST front at {self._http} has not answered for {self._options.rest_silence_s:.0f} s ({reason}); "
                f"{len(self._books.placed_on)} of {len(self._trace.tasks)} tasks were placed"
            )

    # ---- the report ----------------------------------------------------------------------------------------------

    async def _report(
        self, reasons: dict[str, PendingAsk], before: EventIdRange | None, times: tuple[float, float, float, float]
    ) -> ReplayReport:
        books, (nodes_s, applications_s, asks_s, total_s) = self._books, times
        counts, examples = Counter[str](), dict[str, str]()
        for key in sorted(books.open() & reasons.keys()):
            counts[reasons[key].reason] += 1
            examples.setdefault(reasons[key].reason, reasons[key].message)
        both = {key for key in reasons if key in books.placed_on}
        unaccounted = {*(books.open() - reasons.keys()), *both, *books.placed_twice, *books.released}
        self._complain("nodes with more on them than they have", books.overcommitted())
        self._complain("allocated though never asked for", books.never_asked)
        self._complain("allocated twice", books.placed_twice)
        self._complain("released without a request", books.released)
        self._complain("allocated, and pending at the same time", sorted(both))
        utilisation, source = await self._utilisation()
        latencies = books.latencies_s
        first = min(books.asked_at.values(), default=0.0)
        span_s = books.last_placed_at - first
        return ReplayReport(
            rm_id=self._options.rm_id,
            nodes=len(self._trace.nodes),
            applications=len(self._trace.applications),
            tasks=len(self._trace.tasks),
            placed=len(books.placed_on),
            pending=dict(counts),
            examples=examples,
            rejected=dict(Counter(books.rejected.values())),
            unaccounted=sorted(unaccounted),
            complaints=self._complaints,
            placement_rate_per_s=len(latencies) / span_s if span_s > 0 else 0.0,
            latency_p50_ms=percentile(latencies, 50) * 1000,
            latency_p95_ms=percentile(latencies, 95) * 1000,
            latency_p99_ms=percentile(latencies, 99) * 1000,
            utilisation=utilisation,
            utilisation_source=source,
            events_written=await self._events_written(before),
            nodes_s=nodes_s,
            applications_s=applications_s,
            asks_s=asks_s,
            total_s=total_s,
            asks_per_s=self._options.asks_per_s,
            streams_lost=self._client.metrics.streams_lost,
            messages_sent_again=self._client.metrics.messages_sent_again,
            next_places={
                "REST": f"{self._http}/ws/v1/partition/default/queues",
                "why a task is pending": f"{self._http}/ws/v1/explain/pending?rm={self._options.rm_id}",
            },
        )

    async def _utilisation(self) -> tuple[dict[str, Utilisation], str]:
        """Returns REST's figures once REST counts as many containers as were placed; else this client's figures."""
        counted = self._books.used()

        async def in_step() -> dict[str, Utilisation] | None:
            partition = await self._rest.partition()
            if partition is None or partition.get("totalContainers", 0) != len(self._books.placed_on):
                return None
            capacity, used = partition["capacity"].get("capacity", {}), partition["capacity"].get("usedCapacity", {})
            return {name: Utilisation(used.get(name, 0), capacity.get(name, 0)) for name in (CPU, MEMORY, GPU)}

        utilisation = await self._eventually(in_step)
        if utilisation is not None:
            for name, item in utilisation.items():
                if item.used != counted.get(name, 0):
                    self._complaints.append(
                        f"REST says {item.used} {name} are used, the client counts {counted.get(name, 0)}"
                    )
            return utilisation, "REST"
        self._complaints.append("REST does not show as many allocations as were received")
        capacity = self._trace.capacity()
        return {name: Utilisation(counted.get(name, 0), capacity.get(name, 0)) for name in (CPU, MEMORY, GPU)}, "client"

    async def _events_before(self) -> EventIdRange | None:
        """Returns the RM's event ids before the replay; None if REST's answer has none. Raises ReplayFailed if REST is
        silent.
        """
        limit_s = self._options.rest_timeout_s
        error: Exception = TimeoutError("it takes no connection, or gives no answer")
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await self._rest.events()
                    except httpx.TransportError as failure:
                        error = failure
                    except (httpx.HTTPError, KeyError, ValueError) as answer:
                        _raise_if_refused(answer, self._http)
                        return None
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ReplayFailed(
                f"the REST front at {self._http} has not answered within {limit_s:.0f} s ({_in_words(error)}); "
                "nothing was sent"
            ) from error

    async def _events_written(self, before: EventIdRange | None) -> int | None:
        """Returns the number of ids given since the start. Asks until two answers agree, because the publisher follows
        the log.
        """
        last: list[EventIdRange] = []

        async def still() -> EventIdRange | None:
            last.append(await self._rest.events())
            return last[-1] if len(last) > 1 and last[-1] == last[-2] and last[-1].highest is not None else None

        now = await self._eventually(still, pause_s=0.3)
        if now is None or now.highest is None:
            return None
        return now.highest - (before.highest if before and before.highest is not None else -1)

    async def _eventually(self, ask: Callable[[], Awaitable[T | None]], pause_s: float = _POLL_S) -> T | None:
        deadline = self._clock.monotonic() + self._options.follow_timeout_s
        while True:
            try:
                answer = await ask()
                if answer is not None:
                    return answer
            except (httpx.HTTPError, KeyError, ValueError) as error:
                log.info("no answer from REST", error=f"{type(error).__name__}: {error}")
            if self._clock.monotonic() >= deadline:
                return None
            await asyncio.sleep(pause_s)

    def _complain(self, subject: str, names: Sequence[str]) -> None:
        if names:
            self._complaints.append(f"{subject}: {some(list(names))}")

    # ---- callbacks -----------------------------------------------------------------------------------------------

    def _on_allocated(self, allocations: Sequence[si.Allocation]) -> None:
        self._moved_at = now = self._clock.monotonic()
        for item in allocations:
            self._books.allocated(item.allocationKey, item.nodeID, now)
        self._advance("placed", len(allocations))

    def _on_released(self, releases: Sequence[si.AllocationRelease]) -> None:
        self._moved_at = self._clock.monotonic()
        for item in releases:
            self._books.ended(item.allocationKey)

    def _on_rejected(self, rejections: Sequence[Rejection]) -> None:
        self._moved_at = self._clock.monotonic()
        for item in rejections:
            self._books.refused(item.allocation_key, item.reason)

    def _on_application(
        self,
        accepted: Sequence[si.AcceptedApplication],
        rejected: Sequence[si.RejectedApplication],
        _updated: Sequence[si.UpdatedApplication],
    ) -> None:
        self._complaints += [f"{item.applicationID} rejected: {item.reason}" for item in rejected]
        self._advance("applications", len(accepted))

    def _on_node(self, accepted: Sequence[si.AcceptedNode], rejected: Sequence[si.RejectedNode]) -> None:
        self._complaints += [f"{item.nodeID} rejected: {item.reason}" for item in rejected]
        self._advance("nodes", len(accepted))

    def _on_stream(self, stream: str, opened: bool) -> None:
        self._moved_at = self._clock.monotonic()
        (self._open_streams.add if opened else self._open_streams.discard)(stream)

    # ---- inside --------------------------------------------------------------------------------------------------

    async def _or_failure(self, step: Any) -> None:
        """Awaits a step. Raises the client's error if the client fails first."""
        working, failing = asyncio.ensure_future(step), asyncio.ensure_future(self._client.wait())
        try:
            await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                await failing
            await working
        finally:
            working.cancel()
            failing.cancel()
            await asyncio.gather(working, failing, return_exceptions=True)

    async def _timed(self, step: Awaitable[None]) -> float:
        began = self._clock.monotonic()
        await step
        return self._clock.monotonic() - began

    def _bar(self, name: str, total: int) -> None:
        if self._progress is not None:
            self._bars[name] = self._progress.add_task(name, total=total)

    def _advance(self, name: str, count: int) -> None:
        if self._progress is not None and name in self._bars:
            self._progress.update(self._bars[name], advance=count)


def main_replay(
    directory: Path,
    gateway: str = "127.0.0.1:9090",
    http: str = "http://127.0.0.1:9080",
    rm_id: str = "openb",
    *,
    chunk: int = 100,
    asks_per_s: float = 0.0,
    timeout_s: float = 120.0,
    json_file: Path | None = None,
    keep: bool = False,
    access: Access = PLAIN,
    next_places: dict[str, str] | None = None,
    console: Screen | None = None,
) -> int:
    """Runs `muster replay-trace`. Returns the exit code: 0 only if every task is accounted for exactly once, 1 if not,
    2 if the arguments do not work.

    :param keep: stay connected after the report, until interrupted. The replay's cluster stays in Muster either way.
    :param json_file: the report is also written to this file; "-": to standard output, without tables.
    """
    machine = is_standard_output(json_file)
    console = console or Screen(stderr=machine)
    options = ReplayOptions(gateway, http, rm_id, chunk, asks_per_s, settle_timeout_s=timeout_s, access=access)
    if not structlog.is_configured():  # standard output is for the report
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(standard_error()),
        )
    code = 130  # exit code of an interruption before the report
    progress = replay_progress(console)

    async def present(report: ReplayReport, client: RmClient) -> None:
        nonlocal code
        progress.stop()
        report.next_places = report.next_places if next_places is None else next_places
        show(report)
        code = 0 if report.good else 1
        if keep:
            console.print("Connected until interrupted (Ctrl-C).")
            await client.wait()
        elif next_places is None and not machine:
            console.print("The replay ends here. Muster keeps its cluster; with --keep the replay stays connected.")

    def show(report: ReplayReport) -> None:
        text = json.dumps(report.as_dict(), indent=2) + "\n"
        if machine:
            write_json(text)
            return
        if json_file is not None:
            with open_private(json_file) as file:
                file.write(text.encode())
        print_report(report, console)

    async def run() -> None:
        with progress:
            await replay(directory, options, progress=progress, afterwards=present)

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass
    except ClientError as error:
        console.print(marked("[bold red]replay failed:[/] {}", error), soft_wrap=True)
        return 2 if isinstance(error, _WRONG_CALL) else 1
    return code


def is_standard_output(json_file: Path | None) -> bool:
    """Tells whether the report goes to standard output. Then nothing else does."""
    return json_file is not None and str(json_file) == "-"


def replay_progress(console: Screen) -> Progress:
    """Returns progress bars for nodes, applications, asks and placements."""
    return Progress(
        TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _raise_if_refused(error: Exception, front: str) -> None:
    """Raises ReplayFailed if REST refuses this caller: it would also do so later."""
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
        raise ReplayFailed(
            f"the REST front at {front} answers {error.response.status_code} {error.response.reason_phrase}: expected "
            "a token with the role read (--token-file or MUSTER_TOKEN); nothing was sent"
        ) from error


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
