"""One self-contained page, and PNG plots, from the results of `cudal2 bench`.

    cudal2 report benchmarks/results/h200/*.csv

writes report.html and the plots to the folder report beside the first file (or to --out), and prints the headline
figures. A speed-up is
the baseline's time over ours; geomean over the shapes that have both.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from benchmarks import results_file, suites, summary
from benchmarks.results_file import Cells, Group, Results
from benchmarks.summary import Bin, label

_MODES = {
    "graph": "Device time, launches back to back in a CUDA graph; operands warm in L2 where they fit.",
    "isolated": "Device time, each launch behind a plain kernel of about 5 µs, whose own time is subtracted.",
    "cold": "Device time, operands from memory: they rotate over more than twice L2.",
    "sustained": "Device time of a contender alone, for two seconds at a time: what power leaves of the clock.",
    "offline": "Wall clock of one call and its synchronization, calls at once, in shuffled order.",
    "server": "Wall clock of one call and its synchronization, with exponential gaps between calls.",
    "overhead": "Host time of one eager call while the GPU is kept busy.",
}
_ORDER = tuple(_MODES)
_WALL = ("offline", "server", "overhead")
_CALLED = (
    "<p class='note'>torch.matmul and cudal2 as dispatched are timed as Python calls that allocate their output; "
    "cuBLAS, cuBLASLt and own kernels only as prepared C calls into a given output. Compare like with like.</p>"
)

_STYLE = """
:root { --ink: #1d1d1f; --soft: #666; --line: #e3e3e6; --win: #00609c; --loss: #b84a00; --card: #f6f7f9; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; color: var(--ink);
  max-width: 1320px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 20px; margin: 44px 0 2px; padding-top: 14px;
  border-top: 2px solid var(--ink); } h3 { font-size: 15px; margin: 26px 0 6px; }
p.sub { color: var(--soft); margin: 0 0 14px; } p.note { color: var(--soft); font-size: 13px; margin: 4px 0 10px; }
nav { margin: 14px 0 6px; } nav a { margin-right: 16px; color: var(--win); text-decoration: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin: 12px 0 4px; }
.card { background: var(--card); border-radius: 8px; padding: 10px 14px; }
.card .over { font-size: 13px; color: var(--soft); }
.card .figure { font-size: 27px; font-weight: 650; line-height: 1.25; }
.card .wins { font-size: 13px; }
.win { color: var(--win); } .loss { color: var(--loss); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 11px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; max-width: 120px; vertical-align: bottom; }
th.over { text-align: center; max-width: none; color: var(--ink); } .first { border-left: 1px solid var(--line); }
td.left, th.left { text-align: left; }
td.kernel { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; text-align: left; max-width: 330px;
  overflow: hidden; text-overflow: ellipsis; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 14px; align-items: start; }
.plots img { width: 100%; border: 1px solid var(--line); border-radius: 6px; } .plots .wide { grid-column: 1 / -1; }
.bad { background: #fff1ea; border-left: 4px solid var(--loss); padding: 8px 14px; margin: 14px 0; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--win); }
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cudal2 report`."""
    parser.add_argument("files", nargs="+", metavar="RESULTS.csv", help="results files; of both layouts, for maxima")
    parser.add_argument("--out", help="directory to write to (default: report, beside the first file)")
    parser.add_argument("--title", default="cudal2 against cuBLAS")


def run(options: argparse.Namespace) -> int:
    """Write the report. Returns 0; raises ResultsError, or RuntimeError without matplotlib."""
    try:
        from benchmarks import plots
    except ImportError as error:
        raise RuntimeError(f"{error}: the report needs matplotlib (pip install 'cudal2[report]')") from error
    found = results_file.read(options.files)
    directory = Path(options.out or Path(options.files[0]).parent / "report")
    sections = []
    for group in sorted(found.groups, key=_place):
        cells = found.groups[group]
        print("\n".join(text(group, cells)))
        ours = _leading(cells)
        files = plots.draw(group, cells, ours, directory) if ours else {}
        sections.append((group, cells, files))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "report.html"
    path.write_text(page(options.title, found, sections), encoding="utf-8")
    print(path)
    return 0


def _place(group: Group) -> tuple[int, Group]:
    return (_ORDER.index(group.mode) if group.mode in _ORDER else len(_ORDER), group)


def _leading(cells: Cells) -> str:
    """The contender of ours that plots and size tables show: as dispatched, if it is there."""
    there = summary.ours_in(cells)
    return there[0] if there else ""


def text(group: Group, cells: Cells) -> list[str]:
    """The headline figures of a group, for a terminal."""
    found = [f"== {group}, {len(cells)} shapes"]
    for noise in summary.noise(cells):
        found.append(
            f"noise: {noise.name} twice, geomean {noise.geomean:.4f}, 95 % of shapes within {100 * noise.p95:.1f} %"
        )
    found.append(
        f"{'':12} {'against':18} {'shapes':>6} {'geomean':>8} {'mean':>8} {'wins':>7} {'worst':>7} {'best':>7}"
    )
    for ours in summary.ours_in(cells):
        for speedup in summary.speedups(cells, ours):
            ordered = speedup.ordered()
            numbers = f"{len(ordered):6} {speedup.geomean:8.3f} {speedup.mean:8.3f} {100 * speedup.wins:6.1f}%"
            found.append(f"{ours:12} {speedup.baseline:18} {numbers} {ordered[0]:7.3f} {ordered[-1]:7.3f}")
    return found


# Page -----------------------------------------------------------------------------------------------------------------


def page(title: str, found: Results, sections: Sequence[tuple[Group, Cells, dict[str, Path]]]) -> str:
    """The whole page, with its plots inside."""
    header = found.header
    origin = ", ".join(
        part
        for part in (
            header.get("gpu"),
            header.get("date"),
            f"torch {header['torch']}" if "torch" in header else "",
            f"cuBLAS {header['cublas']}" if "cublas" in header else "",
            f"commit {header['commit']}" if "commit" in header else "",
        )
        if part
    )
    links = "".join(f'<a href="#{_anchor(group)}">{escape(str(group))}</a>' for group, _, _ in sections)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p class='sub'>{escape(origin)}</p>",
        "<p class='note'>Figures are speed-ups: the baseline's time over ours, above 1 where ours is faster; "
        "geometric mean over shapes. Every contender was checked on every shape before it was timed.</p>",
        _wrong(header),
        f"<nav>{links}<a href='#provenance'>provenance</a></nav>",
    ]
    suite = header.get("suite", "")
    parts += [_section(group, cells, files, "models" in suite) for group, cells, files in sections]
    parts += [_provenance(found), "</body></html>"]
    return "\n".join(parts)


def _wrong(header: dict[str, str]) -> str:
    if "wrong" not in header:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in header["wrong"].replace(" | ", "; ").split("; "))
    count = lines.count("<li>")
    return (
        f"<div class='bad'><b>{count} wrong result{'s' if count > 1 else ''}</b>, left out of all figures"
        f"<details><summary>which</summary><ul>{lines}</ul></details></div>"
    )


def _anchor(group: Group) -> str:
    return "-".join(group)


def _section(group: Group, cells: Cells, files: dict[str, Path], models: bool) -> str:
    ours = _leading(cells)
    layout = "B stored as N×K, as nn.Linear holds it" if group.layout == "tn" else "B row-major"
    parts = [
        f"<h2 id='{_anchor(group)}'>{escape(group.mode)} · {group.dtype} · {group.layout}</h2>",
        f"<p class='sub'>{_MODES.get(group.mode, '')} {len(cells)} shapes; {layout}.</p>",
    ]
    if ours:
        wall = group.mode in _WALL
        shown = [name for name in summary.ours_in(cells) if wall and name in ("cudal2", "own")] or [ours]
        parts += [_cards(cells, name) for name in shown]
        parts += [_CALLED if wall else "", _noise(cells), _plots(files)]
    parts += ["<h3>All contenders of ours against all baselines</h3>", _speedups(cells)]
    if not summary.speedups(cells, ours):
        parts += ["<h3>Median µs</h3>", _medians(cells)]
    if any(cell.samples for by_name in cells.values() for cell in by_name.values()):
        parts += ["<h3>Latency of single calls, µs</h3>", _latencies(cells)]
    if ours:
        if models:
            parts += ["<h3>By number of tokens, M</h3>", _bins("M", summary.by_rows(cells, ours), cells, ours)]
        parts += ["<h3>By size</h3>", _bins("log2(MNK)", summary.by_size(cells, ours), cells, ours)]
        if reference := summary.reference(cells):
            parts += [f"<h3>Worst ten of {label(ours)} over {label(reference)}</h3>"]
            parts += [_worst(cells, ours, reference, models)]
    return "\n".join(parts)


def _cards(cells: Cells, ours: str) -> str:
    """The figure for each library, of the better layout where both were measured."""
    found = {speedup.baseline: speedup for speedup in summary.speedups(cells, ours)}
    cards = [
        f"<div class='card'><div class='over'>{label(ours)} over {label(name)}</div>"
        f"<div class='figure {_side(speedup.geomean)}'>{speedup.geomean:.3f}×</div>"
        f"<div class='wins'>faster on {100 * speedup.wins:.0f} % of {len(speedup.ratios)} shapes</div></div>"
        for name, speedup in found.items()
        if f"{name}_max" not in found
    ]
    return f"<div class='cards'>{''.join(cards)}</div>"


def _noise(cells: Cells) -> str:
    lines = []
    for noise in summary.noise(cells):
        shape, ratio = noise.worst
        lines.append(
            f"Noise: {label(noise.name)} twice in the same run: geomean {noise.geomean:.4f}, 95 % of {noise.count} "
            f"shapes within {100 * noise.p95:.1f} %, worst {shape} at {ratio:.3f}. Less than that is no difference."
        )
    return "".join(f"<p class='note'>{escape(line)}</p>" for line in lines)


def _plots(files: dict[str, Path]) -> str:
    images = []
    for name, path in files.items():
        data = base64.b64encode(path.read_bytes()).decode()
        kind = " class='wide'" if name in ("size", "latency") else ""
        images.append(f"<img{kind} alt='{escape(path.stem)}' src='data:image/png;base64,{data}'>")
    return f"<div class='plots'>{''.join(images)}</div>"


def _speedups(cells: Cells) -> str:
    """Baselines down, ours across; what is looped in C is a table of its own."""
    there = summary.ours_in(cells)
    tables = [[name for name in there if not name.endswith("_c")], [name for name in there if name.endswith("_c")]]
    return "".join(_matrix(cells, ours) for ours in tables if ours)


def _matrix(cells: Cells, ours: Sequence[str]) -> str:
    against = {name: {s.baseline: s for s in summary.speedups(cells, name)} for name in ours}
    heads = "".join(f"<th class='over first' colspan='4'>{escape(label(name))}</th>" for name in ours)
    units = "<th class='first'>geomean</th><th>mean</th><th>win rate</th><th>worst</th>" * len(ours)
    rows = []
    for baseline in dict.fromkeys(name for found in against.values() for name in found):
        row = [_left(label(baseline))]
        for name in ours:
            speedup = against[name].get(baseline)
            row += (
                [_cell("")] * 4
                if speedup is None
                else [
                    _ratio(speedup.geomean, bold=True).replace("class='", "class='first "),
                    _ratio(speedup.mean),
                    _cell(f"{100 * speedup.wins:.1f} %"),
                    _ratio(speedup.ordered()[0]),
                ]
            )
        rows.append(f"<tr>{''.join(row)}</tr>")
    head = f"<tr><th></th>{heads}</tr><tr><th class='left'>over</th>{units}</tr>"
    return f"<div class='scroll'><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _medians(cells: Cells) -> str:
    names = list(dict.fromkeys(name for by_name in cells.values() for name in by_name if "_max" not in name))
    rows = [
        [_left(str(shape)), *(_cell(f"{by_name[name].us:.2f}" if name in by_name else "") for name in names)]
        for shape, by_name in sorted(cells.items())
    ]
    return _table(["<M,N,K", *names], rows)


def _latencies(cells: Cells) -> str:
    rows = []
    for name in dict.fromkeys(name for by_name in cells.values() for name in by_name if "_max" not in name):
        samples = [us for by_name in cells.values() if name in by_name for us in by_name[name].samples]
        if samples:
            shares = (summary.percentile(samples, share) for share in (0.1, 0.5, 0.9, 0.99))
            rows.append([_left(label(name)), _cell(str(len(samples))), *(_cell(f"{us:.1f}") for us in shares)])
    return _table(["<", "calls", "p10", "median", "p90", "p99"], rows)


def _bins(what: str, bins: Iterable[Bin], cells: Cells, ours: str) -> str:
    names = [speedup.baseline for speedup in summary.speedups(cells, ours)]
    rows = [
        [
            _left(found.title),
            _cell(str(len(found.shapes))),
            _cell(f"{100 * found.roofline:.0f} %" if found.roofline == found.roofline else ""),
            *(_ratio(found.speedups[name]) if name in found.speedups else _cell("") for name in names),
        ]
        for found in bins
    ]
    return _table([f"<{what}", "shapes", "of roofline", *map(label, names)], rows)


def _worst(cells: Cells, ours: str, reference: str, models: bool) -> str:
    names = suites.model_names() if models else {}
    rows = []
    for shape, ratio in summary.worst(cells, ours, reference):
        mine, theirs = cells[shape][ours], cells[shape][reference]
        row = [
            _left(f"{shape.m} × {shape.n} × {shape.k}"),
            _ratio(ratio, bold=True),
            _cell(f"{mine.us:.2f}"),
            _cell(f"{theirs.us:.2f}"),
            _cell(f"{shape.flops / mine.us / 1e6:.0f}"),
            _cell(f"{shape.bytes / mine.us / 1e3:.0f}"),
            _kernel(mine.ran),
            _kernel(theirs.ran),
        ]
        rows.append([*row, _left(names.get((shape.n, shape.k), ""))] if models else row)
    heads = ["<M × N × K", "speed-up", "ours µs", "theirs µs", "TFLOP/s", "GB/s", "<ours ran", "<theirs ran"]
    return _table([*heads, "<layer of"] if models else heads, rows)


def _provenance(found: Results) -> str:
    rows = [
        [_left(key), f"<td class='left' style='white-space:normal'>{escape(value)}</td>"]
        for key, value in found.header.items()
        if key != "wrong"
    ]
    rows.append([_left("files"), _left(", ".join(found.names))])
    return f"<h2 id='provenance'>Provenance</h2>{_table(['<', '<'], rows)}"


# Pieces ---------------------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Heads that start with < are left-aligned."""
    head = "".join(
        f"<th class='left'>{escape(text[1:])}</th>" if text.startswith("<") else f"<th>{escape(text)}</th>"
        for text in heads
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _left(text: str) -> str:
    return f"<td class='left'>{escape(text)}</td>"


def _kernel(text: str) -> str:
    return f"<td class='kernel' title='{escape(text, quote=True)}'>{escape(text)}</td>"


def _ratio(value: float, bold: bool = False) -> str:
    shown = f"{value:.3f}"
    return f"<td class='{_side(value)}'>{f'<b>{shown}</b>' if bold else shown}</td>"


def _side(ratio: float) -> str:
    return "win" if ratio >= 1.0005 else "loss" if ratio < 0.9995 else ""
