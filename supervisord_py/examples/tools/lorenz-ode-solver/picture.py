"""A picture of a trajectory with numpy alone: a glowing thread on a dark ground, written as PNG.

The curve is sampled densely and each sample spreads its light over the four nearest pixels of a finer grid, in
proportion to its distance from each (that is the anti-aliasing). The grid is then averaged down and the light is
mapped to colours as film would do it: much light on one spot goes to white instead of being cut off.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH, HEIGHT = 960, 720
FINER = 2  # the grid has this many cells for a pixel, in both directions
MARGIN = 0.07
SPACING = 0.35  # distance of the samples along the curve, in cells of the grid
MAX_SAMPLES = 1_000_000  # beyond it the samples are further apart, and each is brighter: a bound on memory
SMOOTH = 4.0  # the curve may be straight over this many cells at most; between given points further apart it is bent
EXPOSURE = 1.6
FAINT, BRIGHT = 0.01, 1.0
"""A long curve crosses itself so often that all would be white: nine tenths of what is lit are kept below bright."""
GLOW, GLOW_RADIUS = 1.2, 4.0  # strength of the halo around the thread, and its radius in pixels
GROUND = np.array([0.006, 0.009, 0.022])
PALETTE = np.array([[0.10, 0.34, 1.0], [0.12, 0.78, 0.95], [1.0, 0.66, 0.20], [1.0, 0.22, 0.34]])
"""Colours (red, green, blue) from the beginning of the trajectory to its end."""
TURN = np.radians(35)  # the viewer walks around the z axis by this angle, so that neither wing hides the other


def draw(states: NDArray[np.float64]) -> bytes:
    """Return the PNG of a curve through the given states (rows x, y, z) in their order."""
    places, spacing = _refine(_bend(_fit(_project(states))))
    light = _splat(places, _colours(len(places)) * (spacing / SPACING))
    coarse = light.reshape(HEIGHT, FINER, WIDTH, FINER, 3).mean(axis=(1, 3))
    return encode_png(_develop(coarse + GLOW * _blur(coarse)))


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return height x width x 3 bytes as a PNG file (RFC 2083: a signature, chunks of length, type, content, CRC)."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), dtype=np.uint8)
    rows[:, 1:] = pixels.reshape(height, -1)
    rows[1:, 1:] -= pixels.reshape(height, -1)[:-1]
    rows[1:, 0] = 2  # each row but the first is stored as the difference to the row above: smooth pictures pack better
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, colour type 2 (RGB)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _project(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Look from the side: right is a mix of x and y, down is -z."""
    x, y, z = states.T
    return np.column_stack([np.cos(TURN) * x + np.sin(TURN) * y, -z])


def _fit(flat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale and centre the curve into the grid, keeping its proportions."""
    size = np.array([WIDTH, HEIGHT]) * FINER
    low, high = flat.min(axis=0), flat.max(axis=0)
    extent = np.maximum(high - low, 1e-9)
    scale = float(np.min(size * (1 - 2 * MARGIN) / extent))
    return (flat - (low + high) / 2) * scale + size / 2


def _bend(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the curve with more points, on the cubic through each two neighbours that keeps the slopes there."""
    longest = float(np.max(np.hypot(*np.diff(places, axis=0).T)))
    between = int(np.clip(longest / SMOOTH, 1, MAX_SAMPLES / len(places)))
    slopes = np.gradient(places, axis=0)
    part = np.linspace(0.0, 1.0, between, endpoint=False)[None, :, None]
    start, end = places[:-1, None, :], places[1:, None, :]
    bent = start * (1 + 2 * part) * (1 - part) ** 2 + end * part**2 * (3 - 2 * part)
    bent += slopes[:-1, None, :] * part * (1 - part) ** 2 - slopes[1:, None, :] * part**2 * (1 - part)
    return np.concatenate([bent.reshape(-1, 2), places[-1:]])


def _refine(places: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return points so close along the curve that they look like a line, and the distance of each two."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T))])
    count = int(np.clip(along[-1] / SPACING, 2, MAX_SAMPLES))
    even = np.linspace(0.0, along[-1], count)
    spacing = max(along[-1] / (count - 1), SPACING)
    return np.column_stack([np.interp(even, along, column) for column in places.T]), spacing


def _colours(count: int) -> NDArray[np.float64]:
    """Return the palette stretched over `count` samples."""
    at = np.linspace(0, len(PALETTE) - 1, count)
    return np.column_stack([np.interp(at, np.arange(len(PALETTE)), channel) for channel in PALETTE.T])


def _splat(places: NDArray[np.float64], colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the grid with each sample's light shared out among the four cells around it."""
    width, height = WIDTH * FINER, HEIGHT * FINER
    corner = np.floor(places - 0.5).astype(np.int64)
    corner = np.clip(corner, 0, [width - 2, height - 2])
    right, down = np.clip(places - 0.5 - corner, 0.0, 1.0).T
    grid = np.zeros((height * width, 3))
    shares = (
        ((1 - right) * (1 - down), 0),
        (right * (1 - down), 1),
        ((1 - right) * down, width),
        (right * down, width + 1),
    )
    for share, offset in shares:
        cells = corner[:, 1] * width + corner[:, 0] + offset
        for channel in range(3):
            grid[:, channel] += np.bincount(cells, share * colours[:, channel], minlength=height * width)
    return grid.reshape(height, width, 3)


def _blur(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the light as seen out of focus: a Gaussian, applied where it is a product, among the frequencies."""
    down = np.fft.fftfreq(HEIGHT)[:, None]
    right = np.fft.rfftfreq(WIDTH)[None, :]
    softness = np.exp(-2 * (np.pi * GLOW_RADIUS) ** 2 * (down**2 + right**2))
    seen = np.fft.irfft2(np.fft.rfft2(light, axes=(0, 1)) * softness[:, :, None], s=(HEIGHT, WIDTH), axes=(0, 1))
    return np.maximum(seen, 0.0)


def _develop(light: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Map light to bytes: exposed for the bright parts, with a soft shoulder, the ground added, gamma applied."""
    bright = np.percentile(light[light > FAINT], 90) if (light > FAINT).any() else 0.0
    lit = 1 - np.exp(-EXPOSURE * light / max(1.0, bright / BRIGHT))
    shade = np.clip(GROUND + lit * (1 - GROUND), 0.0, 1.0)
    return np.round(255 * shade ** (1 / 1.6)).astype(np.uint8)
