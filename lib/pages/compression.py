"""What the class site's WebSockets compress: messages that are long enough for it to matter.

To compress, zlib gives Python's lock away, and the server's loop then waits until a hundred pages' threads let it have
the lock again. Nine of ten messages say no more than that a cell begins or has ended.
"""

from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.extensions import Extension, ServerExtensionFactory
from websockets.frames import Frame
from websockets.typing import ExtensionName, ExtensionParameter

WORTH_BYTES = 4096  # a frame of an experiment has 30 KB and more


class _OnlyLong(Extension):
    """An extension that leaves short messages as they are, as RFC 7692 allows for each (section 6)."""

    name = ExtensionName("permessage-deflate")

    def __init__(self, deflate: Extension) -> None:
        self._deflate = deflate

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        return self._deflate.decode(frame, max_size=max_size)

    def encode(self, frame: Frame) -> Frame:
        return self._deflate.encode(frame) if len(frame.data) >= WORTH_BYTES else frame


class _Offer(ServerExtensionFactory):
    """Agrees on what the browser offers as another one does, and then compresses only long messages."""

    name = _OnlyLong.name

    def __init__(self, of: ServerExtensionFactory) -> None:
        self._of = of

    def process_request_params(
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], Extension]:
        answer, deflate = self._of.process_request_params(params, accepted_extensions)
        return answer, _OnlyLong(deflate)


class CompressingLong(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, for its setting `ws`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.available_extensions = [_Offer(one) for one in self.conn.available_extensions or ()]
