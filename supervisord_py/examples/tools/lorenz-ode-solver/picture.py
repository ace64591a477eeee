"""A picture of a trajectory with numpy alone: a thread on a dark ground, brighter where it
passes often, as PNG.
"""

import struct
import zlib

import numpy as np

WIDTH, HEIGHT, MARGIN = 960, 720, 50
SAMPLES = 1_000_000  # along the whole curve
# the viewer walks around the z axis by this angle, so that neither wing hides the other
TURN = np.radians(35)
GROUND = np.array([0.08, 0.09, 0.14])
PALETTE = np.array([[0.10, 0.34, 1.0], [0.12, 0.78, 0.95], [1.0, 0.66, 0.20], [1.0, 0.22, 0.34]])
"""Colours (red, green, blue) from the beginning of the trajectory to its end."""


def draw(states):
    """Return the PNG of a curve through the given states (rows x, y, z) in their order."""
    x, y, z = states.T
    flat = np.column_stack([np.cos(TURN) * x + np.sin(TURN) * y, -z])
    low, size = flat.min(axis=0), np.maximum(np.ptp(flat, axis=0), 1e-9)
    room = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    scale = (room / size).min()
    places = (flat - low) * scale + (room - size * scale) / 2 + MARGIN
    across, down = _stretched(places).T.astype(int)
    colours = _stretched(PALETTE)
    cells = down * WIDTH + across
    light = np.column_stack([np.bincount(cells, colour, minlength=WIDTH * HEIGHT) for colour in colours.T])
    lit = light[light > 0]
    seen = GROUND + (1 - GROUND) * (1 - np.exp(-light / np.percentile(lit, 75)))
    return encode_png((255 * seen).astype(np.uint8).reshape(HEIGHT, WIDTH, 3))


def _stretched(rows):
    """Return so many rows between the given ones that a curve through them has no gaps."""
    at, known = np.linspace(0, len(rows) - 1, SAMPLES), np.arange(len(rows))
    return np.column_stack([np.interp(at, known, column) for column in rows.T])


def encode_png(pixels):
    """Return height x width x 3 bytes as a PNG file (RFC 2083: a signature, chunks of length,
    type, content, CRC).
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), dtype=np.uint8)  # each begins with 0: stored as it is
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, colour type 2 (RGB)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
