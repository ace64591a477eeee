"""Decoding of answers whose body a tool has encoded (Content-Encoding, RFC 9110 section 8.4).

pxd never asks for an encoding, but a server may choose one all the same: without Accept-Encoding
any is allowed. What is decoded here is what the standard library decodes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import aiohttp

PIECE_BYTES = 256 * 1024  # that are decoded at a time: a few bytes may stand for gigabytes

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW_DEFLATE = -zlib.MAX_WBITS
_DEFLATE_METHOD = 8  # low bits of the first byte of a zlib header (RFC 1950)
_FORMATS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}


class ContentCodingError(aiohttp.ClientError):
    """A body that cannot be decoded; the text is the end of a sentence about the answer."""


class Decoder:
    """Decodes one coding of one body, piece by piece."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._format = _FORMATS[coding]
        self._stream = zlib.decompressobj(self._format)
        self._is_empty = True

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk stands for. Raises ContentCodingError if it is not in this coding."""
        if self._is_empty and chunk:
            self._is_empty = False
            # Many servers send "deflate" without the header that belongs to it.
            if self._format == _ZLIB and chunk[0] & 0x0F != _DEFLATE_METHOD:
                self._format = _RAW_DEFLATE
                self._stream = zlib.decompressobj(self._format)
        rest = chunk
        while rest:
            if self._stream.eof:  # a body may consist of several members, one after the other
                self._stream = zlib.decompressobj(self._format)
            try:
                piece = self._stream.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                raise ContentCodingError(
                    f"is not {self._coding}, as its Content-Encoding says: {error}"
                ) from error
            if piece:
                yield piece
            rest = self._stream.unconsumed_tail or self._stream.unused_data
        # The output may have been cut exactly where the input ended.
        while not self._stream.eof and (piece := self._more()):
            yield piece

    def _more(self) -> bytes:
        return self._stream.decompress(b"", PIECE_BYTES)

    def finish(self) -> None:
        """Check the end of the body. Raises ContentCodingError if something is missing."""
        if not self._is_empty and not self._stream.eof:
            raise ContentCodingError(f"breaks off in the middle of its {self._coding}")


class Decoders:
    """Decodes a body to which codings were applied one after the other."""

    def __init__(self, content_encoding: str) -> None:
        """Take the value of the header. Raises ContentCodingError if a coding is unknown."""
        codings = [coding.strip().lower() for coding in content_encoding.split(",")]
        self._decoders: list[Decoder] = []
        for coding in reversed(codings):
            if coding in {"", "identity"}:
                continue
            if coding not in _FORMATS:
                raise ContentCodingError(
                    f"has the Content-Encoding {coding!r}, which pxd cannot decode"
                )
            self._decoders.append(Decoder(coding))

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        yield from self._decode(chunk, 0)

    def _decode(self, chunk: bytes, step: int) -> Iterator[bytes]:
        if step == len(self._decoders):
            yield chunk
            return
        for piece in self._decoders[step].decode(chunk):
            yield from self._decode(piece, step + 1)

    def finish(self) -> None:
        for decoder in self._decoders:
            decoder.finish()
