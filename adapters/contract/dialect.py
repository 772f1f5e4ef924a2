"""What a dialect is: a face for frontends, a codec that drives backends, or both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from adapters.captures.dialect import CaptureFormat
from adapters.captures.secrets import DeltaFormat
from adapters.contract.faces import Face
from adapters.contract.probing import Probe
from adapters.contract.receiving import Receiver
from adapters.model.base import Call, ClientCodec, Encoder

Only = Literal["frontends", "backends"]


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """A wire protocol: its name and its two halves, where built.

    `face` and `encoder` serve frontends: `encoder` makes the newest version, `older` has those that
    stored sessions may still need, by `Encoder.version`. `client` drives backends, and takes the
    settings of one. `only` says that a protocol has one side by nature: `frontends` that nobody is
    a backend of it, `backends` that nobody talks to it. What is not built and not excluded by
    `only` is still to come. `captured` says what is known of its captures, `probe` what a backend
    is asked by `dragoman check`. `receiver` reads what backends send by themselves, of a dialect
    whose backends call us: they have no address. `deltas` are its frames that have more of a text:
    a secret may be spelled by several. Of a recorded body, `session_members` are those by which
    frames name their session, and `recorded_call` is the call that it answers, where it is not a
    plain stream of the session.

    Of its backends: `silence_seconds` is how long an open stream may bring no byte before it is
    taken for dead, where the configuration does not say. `chosen_names` says that a backend knows a
    session by a name that the one who makes it chooses. `backend_settings` are the members of
    `[backends.settings]` that other dialects do not have. `url_schemes` are those of a backend's
    URL, `other_urls` values that may stand in its place, and `example_url` is where one listens
    that somebody tries out.

    Of HTTP: `key_header` is the header with a key, where it is not a bearer token, and
    `page_headers` are those of answers that a web page needs to read.
    """

    name: str
    encoder: type[Encoder] | None = None
    older: Mapping[int, type[Encoder]] = dataclasses.field(default_factory=dict)
    client: Callable[[Mapping[str, Any]], ClientCodec] | None = None
    face: Face | None = None
    only: Only | None = None
    captured: CaptureFormat | None = None
    probe: Probe | None = None
    receiver: Receiver | None = None
    deltas: tuple[DeltaFormat, ...] = ()
    session_members: tuple[str, ...] = ("sessionId", "session_id")
    recorded_call: Call | None = None
    silence_seconds: float = 60.0
    chosen_names: bool = False
    backend_settings: frozenset[str] = frozenset()
    url_schemes: tuple[str, ...] = ("http", "https")
    other_urls: tuple[str, ...] = ()
    example_url: str = ""
    key_header: str = ""
    page_headers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that what is built agrees.

        Raises:
            ValueError: a half is missing, or is one that the dialect does not have.
        """
        if (self.encoder is None) != (self.face is None):
            raise ValueError(
                f"Dialect `{self.name}` has an encoder or a face, and needs both to be served."
            )
        if self.only == "frontends" and (self.client is not None or self.encoder is None):
            raise ValueError(
                f"Dialect `{self.name}` is for frontends only: it has an encoder and a face, and "
                "no client codec."
            )
        if self.only == "backends" and (self.encoder is not None or self.client is None):
            raise ValueError(
                f"Dialect `{self.name}` is for backends only: it has a client codec, and neither "
                "an encoder nor a face."
            )

    @property
    def folder(self) -> str:
        """Return the folder below `adapters`: a dialect's name may have a dash, a package's may
        not."""
        return self.name.replace("-", "_")

    @property
    def not_driven(self) -> str:
        """Say why no session can be given to its backends, where that is so."""
        if self.client is None:
            return "which cannot be driven yet"
        return "whose backends begin all sessions themselves" if self.receiver is not None else ""

    @property
    def rewinds(self) -> bool:
        """Say whether its backends answer again from any message: they remember nothing, so what
        they are sent decides."""
        return not getattr(self.client, "remembers", True)

    @property
    def no_backends(self) -> str:
        """Say that it has no backends, where that is so."""
        if self.only != "frontends":
            return ""
        return f"`{self.name}` is a dialect of frontends only: no backend speaks it"

    @property
    def no_frontends(self) -> str:
        """Say that it has no frontends, where that is so."""
        if self.only != "backends":
            return ""
        return f"`{self.name}` is a dialect of backends only: no frontend speaks it"
