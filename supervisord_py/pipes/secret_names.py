"""Which variables hold a secret, told by their names. Pure.

A name is taken apart into its words: `OPENAI_API_KEY`, `apiKey` and `api-key` have the word `key`;
`MONKEYPATCH`, `KEYBOARD` and `MAX_TOKENS` have no word that means a secret.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = frozenset((
    "key", "keys", "apikey", "apikeys", "accesskey", "authkey", "secretkey", "privatekey",
    "masterkey", "sshkey", "token", "secret", "secrets", "password", "passwords", "passwd",
    "passphrase", "passcode", "credential", "credentials",
))  # fmt: skip
# of words that are written as one: PGPASSWORD, GHTOKEN
_ENDS = ("token", "secret", "password", "passwd", "passphrase")
_ABOUT = frozenset((
    "algorithm", "bits", "bytes", "count", "dir", "directory", "expiry", "file", "folder", "format",
    "length", "lifetime", "limit", "location", "max", "min", "name", "names", "path", "prefix",
    "rotation", "seconds", "size", "timeout", "ttl", "type",
))  # fmt: skip
"""As the last word these say that the value is something about a secret: TOKEN_LIMIT, KEY_PATH."""


def is_secret_name(name: str) -> bool:
    """Say whether a variable of that name holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT or words[0] in {"max", "min", "num"}:
        return False
    # A password of MySQL; the current folder is PWD alone.
    if words[-1] == "pwd" and len(words) > 1:
        return True
    return any(word in _SECRET or word.endswith(_ENDS) for word in words)
