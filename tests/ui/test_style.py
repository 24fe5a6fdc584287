"""The palette, measured: contrast by WCAG's formula, colour-blindness by Machado's matrices (2009)."""

import itertools

import altair as alt
import numpy as np
import pytest

from telekit.ui import style

PAGES = {"light": "#ffffff", "dark": "#111111"}  # JupyterLab's two page colours
SIGHT = {
    "usual": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protanopia": (
        0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998
    ),
    "deuteranopia": (
        0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881
    ),
    "tritanopia": (
        1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900
    ),
}  # fmt: skip
SRGB_TO_XYZ = np.reshape(
    (0.4124564, 0.3575761, 0.1804375, 0.2126729, 0.7151522, 0.072175, 0.0193339, 0.119192, 0.9503041), (3, 3)
)  # fmt: skip
PALETTES = {
    "time": style.TIME,
    "memory": style.MEMORY,
    "components": style.COMPONENTS,
    "models": style.MODELS,
    "sizes": style.SIZES,
    "passes": style.PASSES,
    "schedules": style.SCHEDULES,
}


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = SRGB_TO_XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("name", PALETTES)
@pytest.mark.parametrize("page", PAGES)
def test_every_colour_stands_out_from_both_pages(name, page):
    for meaning, colour in PALETTES[name].items():
        assert contrast(colour, PAGES[page]) >= 2.0, meaning
    assert contrast(style.LIMIT, PAGES[page]) >= 3.0


@pytest.mark.parametrize("ink", ["light", "dark"])
def test_text_is_readable(ink):
    config = style.config(ink)
    for colour in (config["axis"]["labelColor"], config["axis"]["titleColor"], config["text"]["color"]):
        assert contrast(colour, PAGES[ink]) >= 4.5


@pytest.mark.parametrize("name", PALETTES)
@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_colours_of_a_chart_look_alike(name, sight):
    seen = {
        meaning: lab(np.reshape(SIGHT[sight], (3, 3)) @ linear(c)) for meaning, c in PALETTES[name].items()
    }
    for a, b in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= 14, f"{a} and {b} under {sight}"


def test_a_scale_keeps_its_colours_whatever_is_shown():
    scale = style.scale(style.TIME, ["waiting", "compute"]).to_dict()
    assert scale == {
        "domain": ["waiting", "compute"],
        "range": [style.TIME["waiting"], style.TIME["compute"]],
    }


def test_a_dressed_chart_carries_no_address_and_no_foreign_theme():
    spec = style.dressed(alt.Chart(alt.NamedData("t")).mark_bar().encode(x="n:Q"))
    assert not {"$schema", "config"} & set(spec)
