"""Figures for print: the right size, the right artists, fonts inside, the same bytes again."""

import numpy as np
import pytest
from PIL import Image

from ucfl.errors import UcflError
from ucfl.report import figures
from ucfl.report.palette import METHODS, styles
from ucfl.runs import Curve

RNG = np.random.default_rng(0)
METHODS_SHOWN = ["fedavg", "local", "user-centric", "user-centric:streams=4"]


def lines(figure):
    """The labelled lines of the only axes with any."""
    return [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rounds(seeds=3, length=11):
    return {label: 80 + RNG.normal(size=(seeds, length)) for label in METHODS_SHOWN}


def test_a_line_and_a_band_for_each_label():
    values = rounds()
    figure = figures.over_rounds(values, ylabel="worst user in %")
    axes = figure.axes[0]
    assert legend(figure) == METHODS_SHOWN
    assert axes.get_ylabel() == "worst user in %"
    assert len(axes.collections) == len(METHODS_SHOWN)
    for line, label in zip(lines(figure), METHODS_SHOWN, strict=True):
        assert line.get_ydata() == pytest.approx(values[label].mean(0))
    band = axes.collections[0].get_paths()[0].vertices
    highest = (values["fedavg"].mean(0) + values["fedavg"].std(0, ddof=1)).max()
    assert band[:, 1].max() == pytest.approx(highest)


def test_one_seed_has_no_band():
    assert not figures.over_rounds(rounds(seeds=1)).axes[0].collections
    assert len(lines(figures.over_rounds({"fedavg": [1.0, 2.0, 3.0]}))) == 1


def test_accuracy_against_time_is_a_step():
    times, mean = np.array([0.0, 2.0, 5.0]), np.array([10.0, 50.0, 60.0])
    curves = {"fedavg": Curve(times, mean, mean, "T_dl"), "local": (2 * times, mean)}
    figure = figures.over_time(curves, "T_dl", target=55, until=5)
    assert [line.get_drawstyle() for line in lines(figure)] == ["steps-post"] * 2
    assert figure.axes[0].get_xlim() == (0, 5)
    assert "T_{dl}" in figure.axes[0].get_xlabel()
    assert figures.over_time(curves, "s").axes[0].get_xlabel() == "time in s"


def test_bars_carry_their_numbers_and_never_where_there_is_none():
    figure = figures.bars({"fedavg": [10, 20], "local": np.inf, "oracle": 5}, xlabel="time")
    axes = figure.axes[0]
    assert [patch.get_width() for patch in axes.patches] == [15, 0, 5]
    assert [text.get_text() for text in axes.texts] == ["15.0", "never", "5.0"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fedavg", "local", "oracle"]


def test_the_heat_map_orders_users_by_stream_and_frames_streams():
    weights = np.array([[0.6, 0.1, 0.3], [0.1, 0.9, 0.0], [0.4, 0.0, 0.6]])
    figure = figures.heat_map(weights, [0, 1, 0], groups=["a", "b", "a"])
    axes = figure.axes[0]
    order = [0, 2, 1]
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(weights[np.ix_(order, order)])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "2", "1"]
    frames = [patch for patch in axes.patches if not patch.get_fill()]
    assert [(f.get_x(), f.get_width()) for f in frames] == [(-0.5, 2), (1.5, 1)]
    strip = [patch.get_facecolor() for patch in axes.patches if patch.get_fill()]
    assert strip[0] == strip[1] != strip[2]


def test_the_heat_map_tells_users_by_their_names():
    names = ["anna", "$x_1$", "a very long name"]
    figure = figures.heat_map(np.eye(3), [0, 1, 0], names=names)
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [text.get_text() for text in labels] == ["anna", "a very long…", "$x_1$"]
        assert not any(text.get_parse_math() for text in labels)


def test_the_recommended_number_of_streams_is_marked():
    scores = {"emnist": {k: [0.1 * k, 0.1 * k + 0.02] for k in (1, 2, 3)}}
    figure = figures.silhouettes(scores, 2)
    assert lines(figure)[0].get_ydata() == pytest.approx([0.11, 0.21, 0.31])
    ring = [line for line in figure.axes[0].lines if line.get_markersize() == 8]
    assert [(r.get_xdata()[0], r.get_ydata()[0]) for r in ring] == [(2, pytest.approx(0.21))]
    assert figure.axes[0].texts[0].get_text() == "$k$ = 2"


def test_accuracy_against_anything_with_a_logarithmic_axis():
    figure = figures.against(
        {"k = 4": ([10, 100], [[70, 71], [72, 73]])}, xlabel="$n_k$", logarithmic=True
    )
    assert figure.axes[0].get_xscale() == "log"
    assert lines(figure)[0].get_marker() == "o"
    assert lines(figure)[0].get_ydata() == pytest.approx([71, 72])


@pytest.mark.parametrize("width", [figures.SINGLE, figures.DOUBLE])
def test_a_file_has_the_columns_width(tmp_path, width):
    figure = figures.over_rounds(rounds(), width=width)
    for suffix in figures.SUFFIXES:
        assert figures.save(figure, tmp_path / f"f{suffix}").stat().st_size > 1000
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.width == pytest.approx(300 * width, abs=1)
    pdf = (tmp_path / "f.pdf").read_bytes()
    assert f"/MediaBox [ 0 0 {72 * width:g}".encode() in pdf
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Type3" not in pdf
    assert b"<text" not in (tmp_path / "f.svg").read_bytes()


def test_the_same_data_gives_the_same_bytes(tmp_path):
    values = rounds()
    for suffix in figures.SUFFIXES:
        files = [tmp_path / f"{n}{suffix}" for n in "ab"]
        for file in files:
            figures.save(figures.over_rounds(values), file)
        assert files[0].read_bytes() == files[1].read_bytes()


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(UcflError, match=r"\.pdf, \.svg, \.png"):
        figures.save(figures.bars({"a": 1}, xlabel=""), tmp_path / "f.gif")
    with pytest.raises(UcflError, match="seeds by points"):
        figures.over_rounds({"a": []})


def test_a_method_keeps_its_colour_and_its_variants_differ():
    few, many = styles(["fedavg", "user-centric"]), styles([*METHODS, "user-centric:streams=4"])
    assert few["user-centric"] == many["user-centric"]
    variant = many["user-centric:streams=4"]
    assert variant.light == many["user-centric"].light
    assert variant.dashes != many["user-centric"].dashes
    assert len({style.light for style in styles(METHODS).values()}) == len(METHODS)
    strangers = styles(["mine", "yours", "fedavg"])
    assert len({style.light for style in strangers.values()}) == 3


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_every_colour_stands_out_from_its_paper():
    """A contrast of 3, as WCAG asks of graphics."""
    for light, dark in METHODS.values():
        assert 1.05 / (luminance(light) + 0.05) >= 3, light
        assert (luminance(dark) + 0.05) / (luminance("#1b1e24") + 0.05) >= 3, dark
