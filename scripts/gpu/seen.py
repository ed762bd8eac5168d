"""What a part saw, in a line or a small table, from its rows that are ok."""

from __future__ import annotations

from scripts.gpu.part import Row


def facts(rows: list[Row]) -> str:
    told = {row["name"]: row for row in rows}
    said = []
    if device := told.get("device"):
        name = device.get("gpu", "no GPU")
        said.append(f"{name}, torch {device['torch']}, CUDA {device['cuda']}")
    if machine := told.get("machine"):
        said.append(f"python {machine['python']}, {machine['cpus']} CPUs, {machine['commit']}")
    if compiled := told.get("torch's flex", {}).get("seconds_with_backward"):
        said.append(f"flex compiles in {compiled:.0f} s")
    rates = {dtype: told.get(f"rates in {dtype}") for dtype in ("float32", "bfloat16")}
    said += [
        f"{dtype} {rate['matmul_per_second'] / 1e12:.3g} TFLOP/s"
        for dtype, rate in rates.items()
        if rate
    ]
    return "; ".join(said)


def flex(rows: list[Row]) -> str:
    """The largest difference of each dtype."""
    said = [f"{len(rows)} cases equal"]
    for dtype in ("float32", "bfloat16", "evaluated"):
        off = [row["relative"] for row in rows if dtype in row["name"] and "relative" in row]
        if off:
            said.append(f"{dtype} to {max(off):.1e}")
    return ", ".join(said)


def recompiles(rows: list[Row]) -> str:
    return ", ".join(f"{row['name']}: {row['graphs']} graphs" for row in rows)


def suite(rows: list[Row]) -> str:
    return ", ".join(f"{n} {word}" for row in rows for word, n in row["counts"].items() if n)


def demo(rows: list[Row]) -> str:
    """Perplexity at the shortest and the longest length."""
    said = []
    for row in rows:
        each = list(row["perplexity"].values())
        ends = [f"{x:.2f}" if isinstance(x, float) else "n/a" for x in (each[0], each[-1])]
        said.append(f"{row['name']} {' → '.join(ends)} ({row['summary'].get('attention')})")
    return "; ".join(said)


def steps(rows: list[Row]) -> str:
    return f"{len(rows)} run"


def gpt125m(rows: list[Row]) -> str:
    """A line each, below the part's own."""
    lines = [
        f"    {row['name']:<16} {row['tokens_per_second']:>10,.0f} tokens/s, "
        f"{row['share_of_matmul']:.1%} of {row['matmul_per_second'] / 1e12:.3g} TFLOP/s "
        f"({row['dtype']}), {row['peak_mib']:,.0f} MiB, {row['kernel']}"
        for row in rows
    ]
    return "\n".join(["", *lines])


def graphs(rows: list[Row]) -> str:
    """tokens/s of each way, below the part's own line."""
    lines = [
        f"    {row['name']:<16} "
        + ", ".join(f"{way} {it['tokens_per_second']:,.0f}" for way, it in row["ways"].items())
        + f" tokens/s; losses to {row['apart']:.0e}"
        for row in rows
    ]
    return "\n".join(["", *lines])


def speed(rows: list[Row]) -> str:
    """tokens/s and the ratio to the baseline, by mode and length."""
    tables: dict[str, list[str]] = {}
    for row in rows:
        cell = row["cell"]
        side = cell["encoding"]
        if (rates := side["tokens_per_second"]) is None:
            continue
        ratio = (side["speed_ratio"] or {}).get("median")
        memory = "" if side["memory"] is None else f"{side['memory']['used'] / 2**20:>9,.0f} MiB"
        beside = "" if ratio is None else f"×{ratio:.2f}"
        line = (
            f"{side['name']:<16} {rates['median']:>12,.0f} {beside:>6} {memory}  {side['kernel']}"
        )
        tables.setdefault(f"{cell['mode']} {cell['length']:,}", []).append(f"      {line}")
    lines = [line for title, each in tables.items() for line in (f"    {title}", *each)]
    return "\n".join(["tokens/s, × nope", *lines])
