"""posbench describe: what it says of every shipped encoding, and whether that is so."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hydra import compose, initialize_config_module
from rich.console import Console
from torch import nn

from posbench import cli, config
from posbench.attention import KERNELS, blocked, cells
from posbench.attention.costs import Cost, costs
from posbench.attention.operations import operations
from posbench.commands.describe import describe
from posbench.config import DescribeCommand
from posbench.describe import characters, figures, probe, terminal
from posbench.describe.parameters import Parameter, parameters
from posbench.describe.probe import Picture, pictures
from posbench.encodings import Encoding, Shape, Span
from posbench.encodings.alibi import ALiBi
from posbench.encodings.fire import FIRE
from posbench.encodings.learned import Learned
from posbench.encodings.nope import NoPE
from posbench.encodings.pattern import Pattern
from posbench.encodings.rope import RoPE
from posbench.encodings.shaw import Shaw
from posbench.encodings.t5 import T5Bias
from posbench.encodings.transformer_xl import TransformerXL
from posbench.model import from_config
from tests.helpers.marks import a_few
from tests.helpers.places import ROOT
from tests.helpers.tolerance import EXACT

NAMES = sorted(path.stem for path in (ROOT / "conf/encoding").glob("*.yaml"))
TOY = "model.width=16 model.heads=2 model.feed_forward=32 train.length=16 describe.matrix=8"
TINY = Shape(width=128, heads=4, layers=2)

Output = pytest.CaptureFixture[str]


@cache
def asked(*words: str) -> DescribeCommand:
    """The configuration of a command line, at model=tiny unless the words say otherwise."""
    with initialize_config_module("posbench.conf", version_base="1.3"):
        return config.load(compose("describe", ["run.name=it", *words]), DescribeCommand)


def picture(*words: str) -> Picture:
    """The first, or only, one."""
    return pictures(asked(*words))[0]


def only(make: Callable[[Shape], Encoding], shape: Shape = TINY) -> Parameter:
    (found,) = parameters(make, shape)
    return found


@pytest.mark.parametrize("name", a_few(NAMES, 12))
def test_every_encoding_is_described(name: str) -> None:
    asking = asked(f"encoding={name}", *TOY.split())
    written = io.StringIO()
    describe(asking, Console(file=written, width=80))
    said = written.getvalue()
    encoding = from_config.encoding_of(asking)
    assert all(f" {parameter} " in said for parameter, _ in encoding.named_parameters())
    assert all(cell in said for cell in cells.CELLS if cells.fills(encoding, cell))
    assert max(map(len, said.splitlines())) <= 80
    assert not [c for c in said if c != "\n" and unicodedata.category(c) == "Cc"]


class Bare(ALiBi):
    """One that says nothing of itself."""


class Silent(Encoding):
    """The same, of no other encoding."""


TWO_SIDED = (
    "nope sinusoidal learned rope alibi t5 shaw deberta transformer_xl_memoryless kerple_log "
    "local_global swan"
).split()


@pytest.mark.parametrize("name", a_few(TWO_SIDED, 6))
def test_a_masked_model_has_curves_on_both_sides(name: str, tmp_path: Path) -> None:
    words = (f"encoding={name}", "objective=masked", "objective.decoder=enhanced", *TOY.split())
    written = io.StringIO()
    describe(asked(*words, "figures=true", f"folder={tmp_path}"), Console(file=written, width=80))
    said = written.getvalue()
    assert "head 0, ahead" in said
    assert "Claims" not in said, "the documents speak of causal models"
    assert max(map(len, said.splitlines())) <= 80 + len(str(tmp_path))
    for drawn in pictures(asked(*words)):
        assert drawn.ahead is not None
        assert drawn.ahead.shape == drawn.curves.shape
        upper = drawn.matrix.triu(1)
        assert bool((upper.sum((1, 2)) > 0).all()), "keys after the query are seen"


def test_alibis_sides_are_alike_and_t5s_are_not() -> None:
    alibi, t5 = (picture(f"encoding={name}", "objective=masked") for name in ("alibi", "t5"))
    assert alibi.ahead is not None
    assert t5.ahead is not None
    assert torch.equal(alibi.curves, alibi.ahead)
    assert not torch.equal(t5.curves[:, 1:], t5.ahead[:, 1:])


def test_measured_sides_mirror_each_other_where_they_must() -> None:
    """NoPE prefers no key; the window of a local layer ends at the same distance on both sides."""
    nope = picture("encoding=nope", "objective=masked")
    assert nope.ahead is not None
    for curves in (nope.curves, nope.ahead):
        torch.testing.assert_close(curves, torch.zeros_like(curves), rtol=EXACT, atol=EXACT)
    local = picture("encoding=local_global", "encoding.windows.local=5", "objective=masked")
    assert local.ahead is not None
    for curves in (local.curves, local.ahead):
        assert bool(curves[:, :5].isfinite().all())
        assert bool((curves[:, 5:] == -torch.inf).all())


@pytest.mark.parametrize("name", ["paper", "formula"])
def test_what_an_encoding_does_not_say_of_itself_is_told(name: str) -> None:
    written = io.StringIO()
    Console(file=written, width=120).print(
        terminal.title("silent", Silent(TINY)), terminal.title("bare", Bare(TINY))
    )
    said = written.getvalue()
    assert f"{name}: not given; it is the attribute `{name}` of class Silent" in said
    assert f"{name}: that of ALiBi, which Bare inherits from" in said
    assert "https://arxiv.org/abs/2108.12409" in said
    assert "logit_ij = q_i . k_j / sqrt(d) - m_h (i - j)" in said


def test_the_command_prints_it_and_no_escape_code_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.run(["describe", "encoding=nope", *TOY.split()]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nope: ")
    assert "\x1b" not in said


def test_t5_is_one_table_for_all_layers() -> None:
    table = Parameter("bias", ["H=4", "32"], 128, "shared by all layers", "per head")
    assert only(T5Bias) == table


def test_claims_stand_with_their_verdicts(capsys: Output) -> None:
    assert cli.run(["describe", "encoding=alibi", *TOY.split()]) == 0
    assert "holds" in capsys.readouterr().out.partition("Claims")[2]


def test_who_shares_a_parameter() -> None:
    shaw, _ = parameters(Shaw, TINY)
    assert shaw == Parameter(
        "key_table", ["N=2", "33", "d=32"], 2112, "per layer", "shared by all heads"
    )
    u, _, projection = parameters(TransformerXL, TINY)
    assert (u.axes, u.layers) == (["1", "H=4", "d=32"], "shared by all layers")
    assert (projection.axes, projection.heads) == (["N=2", "D=128", "D=128"], "whole width")
    untied, *_ = parameters(partial(TransformerXL, untie=True), TINY)
    assert (untied.axes, untied.layers) == (["N=2", "H=4", "d=32"], "per layer")
    assert only(partial(Learned, max_length=16)).layers == "at the input"
    found = {each.name: each.heads for each in parameters(FIRE, TINY)}
    assert (found["w1"], found["w2"]) == ("shared by all heads", "per head")


def test_the_parts_of_a_mix_share_among_their_own_layers() -> None:
    parts = {"far": T5Bias, "near": Shaw, "none": NoPE}
    make = partial(Pattern, pattern=["near"] * 3 + ["none", "far"], parts=parts)
    found = parameters(make, Shape(16, 2, 5))
    far, near, _ = found
    assert (far.name, far.layers) == ("parts.far.bias", "shared by all layers")
    assert (near.axes[0], near.layers) == ("N=3", "per layer")


def test_a_list_with_a_tensor_a_layer_is_per_layer() -> None:
    class Listed(Encoding):
        def __init__(self, shape: Shape) -> None:
            super().__init__(shape)
            self.tables = nn.ParameterList(torch.zeros(3) for _ in range(shape.layers))

    assert [each.layers for each in parameters(Listed, TINY)] == ["per layer"] * 2


def test_who_shares_is_unknown_where_no_other_size_can_be_built() -> None:
    class Four(Encoding):
        def __init__(self, shape: Shape) -> None:
            super().__init__(shape)
            if shape.heads != 4:
                raise ValueError("four heads only")
            self.slopes = nn.Parameter(torch.zeros(4))

    assert only(Four) == Parameter("slopes", ["4"], 4, "unknown", "unknown")


def test_building_at_other_sizes_leaves_the_random_state() -> None:
    before = torch.random.get_rng_state()
    parameters(Shaw, TINY)
    assert torch.equal(before, torch.random.get_rng_state())


def test_operations_are_counted_as_said() -> None:
    a, b, x = torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 7)
    assert operations(lambda: a @ b) == 2 * 3 * 4 * 5
    assert operations(lambda: torch.einsum("bhd,hmd->bhm", x[None], torch.ones(2, 5, 7))) == 140
    assert operations(lambda: x + x.cos()) == 2 * 14
    assert operations(lambda: x.cumsum(0)) == 14
    assert operations(lambda: x.sum()) == 14
    assert operations(lambda: torch.cat((x, x)).mT.contiguous()[0].long() + 1) == 0


def by_cell(encoding: Encoding, length: int) -> dict[str, Cost]:
    return {cost.what: cost for cost in costs(encoding.eval(), length)}


def test_the_costs_of_plain_attention_and_of_a_bias() -> None:
    length, pairs = 64, 4 * 64 * 64
    found = by_cell(T5Bias(TINY), length)
    assert list(found) == ["plain attention", "distance_bias"]
    plain, bias = found.values()
    assert plain == Cost("plain attention", 2 * 2 * 2 * pairs * 32, 0, 4 * pairs)
    assert 2 * pairs < bias.operations < 2 * (pairs + 10 * length)  # one addition, and buckets
    assert (bias.running, bias.written) == (4 * 4 * length, 4 * (4 * length + pairs))


def test_the_costs_of_vectors_by_distance() -> None:
    length, pairs = 256, 4 * 256 * 256
    found = by_cell(Shaw(TINY), length)
    keys, values = found["distance_keys"], found["distance_values"]
    assert keys.operations == 2 * (2 * pairs * 32 + pairs)
    assert values.operations == 2 * 2 * pairs * 32
    block = 4 * 32 * (32 + 16)  # heads, queries, columns: theirs and those before the clip
    table = 4 * length * 32
    assert keys.running == values.running == 4 * (table + block)
    assert keys.written == 4 * (table + 32 * pairs)


def test_a_rotation_is_three_operations_a_number() -> None:
    rotate = by_cell(RoPE(TINY), 512)["rotate"].operations
    numbers = 2 * 2 * 512 * 128  # layers, q and k
    angles = 2 * 2 * 3 * 512 * 16  # their products, cosines and sines
    assert rotate == pytest.approx(3 * numbers + angles, rel=1e-3)


def test_memory_is_more_keys() -> None:
    plain = by_cell(TransformerXL(TINY, memory_length=64), 64)["plain attention"]
    assert plain.operations == 2 * by_cell(NoPE(TINY), 64)["plain attention"].operations


def test_the_cell_that_no_fused_kernel_takes_is_costed_in_blocks() -> None:
    asking = asked("encoding=cope")
    encoding = from_config.encoding(asking.encoding, TINY)
    plain, scores = by_cell(encoding, 256).values()
    assert plain.running == scores.running == 4 * 4 * blocked.BLOCK * 256
    explicit, _ = costs(encoding, 256, "reference")
    assert explicit.running == explicit.written == 4 * 4 * 256 * 256


def test_alibis_picture_is_its_formula() -> None:
    found = picture("encoding=alibi")
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    bias = -slopes[:, None] * torch.arange(128)
    assert not found.measured
    torch.testing.assert_close(found.curves, bias)
    distance = torch.arange(32)[:, None] - torch.arange(32)
    expected = (-slopes[:, None, None] * distance).exp().tril()
    torch.testing.assert_close(found.relative, expected)


def test_no_position_is_no_preference() -> None:
    found = picture("encoding=nope")
    torch.testing.assert_close(found.curves, torch.zeros(4, 128, dtype=torch.float64))


def test_rope_alone_prefers_near_keys_and_knows_distances_only() -> None:
    found = picture("encoding=rope", "seed=3")
    assert found.measured
    assert (found.curves[:, 0] > 1).all()
    assert (found.curves.argmax(1) == 0).all()
    model = from_config.model(asked("encoding=rope", "seed=3"), 256)
    assert torch.equal(model.tokens.weight, from_config.model(asked("seed=3"), 256).tokens.weight)
    diagonals = [found.relative[:, range(n, 32), range(32 - n)] for n in range(31)]
    assert max(float((d.amax(1) / d.amin(1)).max()) for d in diagonals) < 1.5  # a mean of windows


def test_input_vectors_are_seen_by_the_first_layer() -> None:
    near, far = picture("encoding=sinusoidal").curves[:, [0, 64]].T
    assert (near > far + 0.3).all()


def test_beyond_the_window_there_is_nothing() -> None:
    local, everywhere = pictures(asked("encoding=local_global"))
    assert (local.layer, everywhere.layer) == (0, 1)
    assert local.curves[:, :64].isfinite().all()
    assert local.curves[:, 64:].isneginf().all()
    assert everywhere.curves.isfinite().all()


def test_random_contents_are_another_picture() -> None:
    random = picture("encoding=rope", "describe.alike=false")
    assert (random.curves[:, 0] < picture("encoding=rope").curves[:, 0]).all()
    again = picture("encoding=rope", "describe.alike=false")
    assert torch.equal(random.curves, again.curves)


@pytest.mark.parametrize("name", ["shaw", "fox", "cope", "fire", "randomized_alibi", "xpos"])
def test_weights_reproduce_the_kernels_output(name: str) -> None:
    """Whatever v: sum_j weights_ij (v_j + V(i - j)) is what the reference computes."""
    asking = asked(f"encoding={name}", "describe.alike=false", "train.length=70")
    model = from_config.model(asking, 256).double().eval()
    with torch.no_grad():
        call = probe._calls(model, probe._tokens(asking, 70), [0])[0]
        weights = probe.weights(model, 0, call)
        v = torch.randn(8, 4, 70, 32, generator=torch.Generator().manual_seed(0)).double()
        span = model.encoding.place(Span.window(70))
        kernel = KERNELS["reference"]
        out = kernel(call.q, call.k, v, model.encoding, 0, span, x=call.x)[:, :, -64:]
        expected = weights @ v
        if (table := model.encoding.distance_values(span.distances, 0)) is not None:
            distance = (span.queries[:, None] - span.keys).clamp(min=0)[-64:]
            expected += torch.einsum("bhts,htsd->bhtd", weights, table[:, distance])
    torch.testing.assert_close(expected, out, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(8, 4, 64).double())


def test_a_mean_over_distances_is_over_the_queries_that_have_them() -> None:
    found = picture("encoding=alibi", "train.length=8", "model.heads=1", "describe.matrix=8")
    assert found.matrix.shape == (1, 8, 8)
    torch.testing.assert_close(found.matrix.sum(-1), torch.ones(1, 8).double())


def test_bins_cover_all_distances_and_keep_the_near_ones_apart() -> None:
    for length in (2, 16, 128, 5000):
        starts = characters.bins(length, 48)
        assert starts[:2] == [0, 1]
        assert len(starts) <= 48
        assert starts[-1] < length
    assert characters.binned(torch.arange(8.0), [0, 1, 2, 4]) == [0, 1, 2.5, 5.5]
    assert characters.ruler([0, 1, 2, 3, 4, 6, 8, 11]) == "0 2 4 8"


def test_bars_share_a_scale_and_do_not_magnify_noise() -> None:
    assert characters.bars([[0.0, -3.5, -7.0], [-1.0, -1000.0, -math.inf]]) == ["█▅▂", "█▁ "]
    assert characters.bars([[0.0, 0.0]]) == ["██"]
    assert characters.bars([[0.0, -0.01]]) == ["██"]


def test_shades_are_steps_of_the_logarithm() -> None:
    matrix = torch.tensor([[1.0, 0, 0], [0.2, 1, 0], [0.01, 0.2, 1]])
    lines, least = characters.shades(matrix)
    assert lines == ["██", "▓▓██", "··▓▓██"]
    assert least[0] == 0
    assert least[-1] == pytest.approx(0.01**0.2)


@pytest.mark.slow
def test_the_figures_are_images_and_the_same_each_time(tmp_path: Path, capsys: Output) -> None:
    words = ["encoding=local_global", "encoding.windows.local=4", *TOY.split()]
    assert cli.run(["describe", *words, "figures=true", f"folder={tmp_path}/shown"]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.partition("written:")[2].split()]
    names = [f"local_global-{what}" for what in ("distance.png", "distance.svg", "matrix.png")]
    assert paths == [tmp_path / "shown" / name for name in [*names, "local_global-matrix.svg"]]
    twins = figures.write(pictures(asked(*words)), "local_global", tmp_path / "again", alike=True)
    for path, twin in zip(paths, twins, strict=True):
        assert path.read_bytes() == twin.read_bytes()
        if path.suffix == ".png":
            assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_matplotlib_is_left_alone_without_figures(tmp_path: Path) -> None:
    code = (
        "import sys; from posbench import cli; "
        f"assert cli.run('describe encoding=rope {TOY}'.split()) == 0; "
        "assert 'matplotlib' not in sys.modules and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("describe.length=1", ["describe.length=1", "at least 2"]),
        ("describe.matrix=99", ["describe.matrix=99", "36"]),
        ("encoding=learned describe.length=17", ["describe.length=17", "16 positions"]),
        ("describe.lenght=8", ["describe.lenght", "did you mean describe.length?"]),
        ("describe.alike=perhaps", ["describe.alike", "perhaps"]),
        ("figure=true", ["did you mean figures?"]),
        ("encoding=cope model.attention=fused", ["model.attention=fused", "CoPE"]),
        ("encoding=t5 encoding.buckets=3", ["encoding.buckets=3"]),
        ("figures=true folder=/dev/null/x", ["/dev/null"]),
    ],
)
def test_a_mistake_gets_one_clear_line(override: str, expected: list[str], capfd: Output) -> None:
    assert cli.run(["describe", *TOY.split(), *override.split()]) == 1
    said = capfd.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    assert all(part in said for part in expected)
