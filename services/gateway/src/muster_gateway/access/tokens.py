"""Static tokens: names, roles and digests. No token itself is kept."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from muster_runtime.identity import Identity, Proof, Role, rights_of

from muster_gateway.errors import InvalidToken
from muster_gateway.settings import DIGEST, TOKEN, TOKEN_CHARS_MIN, TOKEN_EXPECTED, Token

# A larger file holds no token. Reading all of it would waste memory.
_TOKEN_FILE_BYTES_MAX = 16 * 1024
_TOKENS_OF_FILE_MAX = 10


class Tokens:
    """The identities of the configured tokens. Keeps only the tokens' digests.

    :param configured: by name. Token files are read here; :meth:`files` names them.

    The constructor raises InvalidToken, which names the setting and never shows a token or a file's content.
    """

    def __init__(self, configured: Mapping[str, Token]) -> None:
        self._identities: list[tuple[bytes, Identity]] = []
        owners: dict[bytes, str] = {}
        for name, entry in configured.items():
            setting = f"gateway.tokens.{name}"
            identity = Identity(name, rights_of(Role(entry.role)), Proof.TOKEN)
            for digest in dict.fromkeys(map(_stored, _tokens(setting, entry))):
                if digest in owners:
                    raise InvalidToken(f"{setting} and gateway.tokens.{owners[digest]}: the same token, expected two")
                owners[digest] = name
                self._identities.append((digest, identity))

    def __len__(self) -> int:
        return len(self._identities)

    def find(self, token: str) -> tuple[bytes, Identity] | None:
        """Returns the token's digest and owner; None: the token is unknown. Takes the same time for every token, so
        that timing reveals no part of one.
        """
        return self._of_digest(digest_of(token))

    def owner(self, digest: bytes) -> Identity | None:
        """Returns the owner of a token that :meth:`find` found earlier; None: the token is no longer known."""
        match = self._of_digest(digest)
        return match[1] if match is not None else None

    def _of_digest(self, digest: bytes) -> tuple[bytes, Identity] | None:
        match = None
        for known_digest, identity in self._identities:
            if compare_digest(known_digest, digest):
                match = (known_digest, identity)
        return match


def digest_of(token: str) -> bytes:
    """Returns the digest by which a token is kept and compared."""
    return sha256(token.encode()).digest()


def _stored(text: str) -> bytes:
    """Returns the digest that a setting or a file gives, as it is or of its token."""
    match = DIGEST.fullmatch(text)
    return bytes.fromhex(match[1]) if match is not None else digest_of(text)


def _tokens(setting: str, entry: Token) -> list[str]:
    """Returns the tokens of one name: one, or the lines of a file. So a token can be renewed while both count."""
    if entry.token is not None:
        return [entry.token.get_secret_value()]
    assert entry.token_file is not None  # the settings require one of the two
    text = _read(f"{setting}.token_file", entry.token_file)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not all(map(_usable, lines)) or len(lines) > _TOKENS_OF_FILE_MAX:
        more = f"; one in a line, at most {_TOKENS_OF_FILE_MAX}"
        raise InvalidToken(f"{setting}.token_file {entry.token_file}: {TOKEN_EXPECTED}{more}")
    return lines


def _usable(text: str) -> bool:
    return DIGEST.fullmatch(text) is not None or (len(text) >= TOKEN_CHARS_MIN and TOKEN.fullmatch(text) is not None)


def _read(setting: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_FILE_BYTES_MAX + 1)
        # a file over the limit holds no token, whatever its beginning looks like
        return content.decode("ascii").strip() if len(content) <= _TOKEN_FILE_BYTES_MAX else ""
    except OSError as error:
        raise InvalidToken(f"{setting} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidToken(f"{setting} {path}: {TOKEN_EXPECTED}") from None
