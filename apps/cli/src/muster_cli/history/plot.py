"""Usage over time as a picture: a panel for each resource type, with an area for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from muster_runtime.optional_packages import require
from muster_runtime.private_files import open_private

from muster_cli.errors import UsageError
from muster_cli.history.usage import NO_LIMIT, StepSeries, UsageSeries
from muster_cli.history.usage_show import title

SUFFIXES = (".png", ".svg", ".pdf")
_SERIES_MAX = 8
_PANELS_MAX = 6
_POINTS_MAX = 600
_WIDTH_IN, _PANEL_IN, _MARGIN_IN = 11.0, 2.3, 1.1
# Okabe and Ito's colours, which colour-blind readers can distinguish, and two more.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C6BB1", "#999999")
_LIMIT_STYLES = {"max": ("#B2182B", "--"), "guaranteed": ("#111111", ":")}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "thousands", "millions", "billions", "trillions")


def check(file: Path) -> None:
    """Raises UsageError if no picture can be written to the file."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {file}: expected a name that ends with {', '.join(SUFFIXES)}")
    require("matplotlib", "--plot")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--plot {file}: the directory {file.absolute().parent} does not exist")


def draw(usage: UsageSeries, file: Path) -> None:
    """Writes the picture. The file appears when it is complete. Raises UsageError if it cannot be written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    types = sorted({*usage.breakdown, *usage.limits}, key=lambda name: (name not in usage.breakdown, name))[
        :_PANELS_MAX
    ]
    # The same history gives the same bytes; texts stay texts.
    with mpl.rc_context({"svg.hashsalt": "muster", "svg.fonttype": "none", "font.size": 9}):
        height = _PANEL_IN * max(len(types), 1) + _MARGIN_IN
        figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
        panels = figure.subplots(max(len(types), 1), 1, sharex=True, squeeze=False)[:, 0]
        names = _largest_first(usage)
        handles: dict[str, Any] = {}
        for panel, resource_type in zip(panels, types, strict=False):
            _panel(panel, usage, resource_type, names, handles)
        if not types:
            panels[0].text(0.5, 0.5, "nothing was allocated", ha="center", transform=panels[0].transAxes)
        _time_axis(panels[-1], usage)
        figure.align_ylabels(panels)
        figure.suptitle(f"Allocated: {title(usage)}", x=0.01, ha="left", fontsize=12, fontweight="bold")
        if handles:
            # The order of the picture: the lines, then the areas from the top down.
            order = sorted(handles, key=lambda name: (name not in _LIMIT_STYLES, -list(handles).index(name)))
            figure.legend([handles[name] for name in order], order, loc="outside right upper", frameon=False)
        part = file.with_name(f".{file.name}.part")
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else {}
        try:
            with open_private(part) as output:
                figure.savefig(output, format=file.suffix[1:].lower(), dpi=130, metadata=metadata)
            part.replace(file)
        except OSError as error:
            raise UsageError(f"--plot {file}: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)


def _largest_first(usage: UsageSeries) -> list[str]:
    """Returns the parts in stacking order: the part with the highest share of any type first."""
    shares: dict[str, float] = {}
    for parts in usage.breakdown.values():
        most = max((int(series.values.max(initial=0)) for series in parts.values()), default=0) or 1
        for name, series in parts.items():
            shares[name] = max(shares.get(name, 0.0), int(series.values.max(initial=0)) / most)
    return sorted(shares, key=lambda name: (-shares[name], name))


def _panel(panel: Any, usage: UsageSeries, resource_type: str, names: list[str], handles: dict[str, Any]) -> None:
    parts = usage.breakdown.get(resource_type, {})
    limits = usage.limits.get(resource_type, {})
    total = usage.total(resource_type)
    top = max(int(total.values.max(initial=0)), *(int(limit.values.max(initial=0)) for limit in limits.values()), 1)
    scale, unit = _unit(resource_type, top)
    edges = _edges(usage, [*parts.values(), *limits.values()], total)
    seconds = _x(usage, edges)
    below = np.zeros(len(edges))
    shown = names if len(names) <= _SERIES_MAX + 1 else names[:_SERIES_MAX]
    groups = [(name, [name]) for name in shown]
    if others := names[len(shown) :]:
        groups.append((f"{len(others)} others", others))
    for index, (label, members) in enumerate(groups):
        values = np.sum([parts[name].at(edges) for name in members if name in parts], axis=0) / scale
        if not np.any(values):
            continue
        colour = _COLOURS[index % len(_COLOURS)]
        area = panel.fill_between(
            seconds, below, below + values, step="post", color=colour, alpha=0.85, linewidth=0.4, edgecolor="white"
        )
        handles.setdefault(label, area)
        below = below + values
    for limit_name, series in limits.items():
        colour, line = _LIMIT_STYLES[limit_name]
        values = series.at(edges).astype(float)
        values[(values == NO_LIMIT) | (edges < series.at_ns[0])] = np.nan
        (drawn,) = panel.step(seconds, values / scale, where="post", color=colour, linestyle=line, linewidth=1.6)
        handles.setdefault(limit_name, drawn)
    panel.set_ylim(0, top / scale * 1.08)
    panel.set_ylabel(f"{resource_type}\n[{unit}]" if unit else resource_type)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    panel.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.margins(x=0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _edges(usage: UsageSeries, series: list[StepSeries], total: StepSeries) -> Any:
    """Returns the times of changes within the picture, and its ends.

    If there are more than the picture can show, keeps of each short interval the time with the highest usage, so that
    peaks stay.
    """
    ends = np.array([usage.begin_ns, usage.end_ns])
    times = np.unique(np.concatenate([ends, *(step_series.at_ns for step_series in series)]))
    times = times[(times >= usage.begin_ns) & (times <= usage.end_ns)]
    if len(times) <= _POINTS_MAX:
        return times
    bins = (times - usage.begin_ns) * _POINTS_MAX // (usage.end_ns - usage.begin_ns + 1)
    order = np.lexsort((-total.at(times), bins))  # the highest usage of each bin first
    first = np.unique(bins[order], return_index=True)[1]
    return np.unique(np.concatenate([ends, times[order[first]]]))


_SHORT_S = 300


def _x(usage: UsageSeries, times_ns: Any) -> Any:
    """Returns places on the x axis: seconds since the beginning for a short time, else days since 1970 (matplotlib's
    dates).
    """
    if (usage.end_ns - usage.begin_ns) / 1e9 < _SHORT_S:
        return (times_ns - usage.begin_ns) / 1e9
    return times_ns / 86400e9


def _time_axis(panel: Any, usage: UsageSeries) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    from muster_cli.history.usage import format_time

    if (usage.end_ns - usage.begin_ns) / 1e9 < _SHORT_S:
        panel.set_xlabel(f"seconds since {format_time(usage.begin_ns)} (UTC)")
        return
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    panel.set_xlabel("time (UTC)")


def _unit(resource_type: str, top: int) -> tuple[float, str]:
    """Returns the divisor of values, and their unit."""
    from muster_si.constants import CPU, MEMORY

    if resource_type == CPU:
        return 1000.0, "cores"
    base, units = (1024, _BINARY) if resource_type in (MEMORY, "ephemeral-storage") else (1000, _DECIMAL)
    exponent = 0
    while top >= base ** (exponent + 1) * 10 and exponent + 1 < len(units):
        exponent += 1
    return float(base**exponent), units[exponent]
