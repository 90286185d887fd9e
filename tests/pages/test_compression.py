"""A class site's WebSockets: what is long is compressed, what is short is not, and all of it arrives as it was."""

import threading
import time

import pytest
import uvicorn
from websockets.extensions import ClientExtensionFactory, Extension
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.frames import DATA_OPCODES
from websockets.sync.client import connect

from benchmarks.browser import free_port
from lib.pages.compression import WORTH_BYTES, CompressingLong

# Short ones between long ones: those must not disturb what both sides remember of the long ones.
LENGTHS = [5, WORTH_BYTES, 20_000, WORTH_BYTES - 1, 20_000, 0, 300_000, 1, WORTH_BYTES + 1]
MESSAGES = [(f"{place}: the loss of a step " * (length // 10 + 1))[:length] for place, length in enumerate(LENGTHS)]


class Noting(Extension):
    """What the client agreed on with the server; notes which frames came compressed, and how long they were."""

    def __init__(self, extension):
        self.name, self._extension, self.seen = extension.name, extension, []

    def decode(self, frame, *, max_size=None):
        if frame.opcode in DATA_OPCODES:
            self.seen.append((frame.rsv1, len(frame.data)))
        return self._extension.decode(frame, max_size=max_size)

    def encode(self, frame):
        return self._extension.encode(frame)


class Noted(ClientExtensionFactory):
    """Offers to compress, as a browser does."""

    name = ClientPerMessageDeflateFactory.name

    def __init__(self):
        self._offer = ClientPerMessageDeflateFactory()

    def get_request_params(self):
        return self._offer.get_request_params()

    def process_response_params(self, params, accepted_extensions):
        self.agreed = Noting(self._offer.process_response_params(params, accepted_extensions))
        return self.agreed


async def talk(scope, receive, send):
    """Say all messages, and then whatever is said."""
    await receive()
    await send({"type": "websocket.accept"})
    for message in MESSAGES:
        await send({"type": "websocket.send", "text": message})
    while (said := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": said["text"]})


@pytest.fixture
def address():
    config = uvicorn.Config(talk, port=free_port(), lifespan="off", log_level="error", ws=CompressingLong)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"ws://127.0.0.1:{config.port}/"
    server.should_exit = True
    thread.join(30)


def test_long_messages_are_compressed_and_short_ones_come_as_they_are(address):
    offer = Noted()
    with connect(address, compression=None, extensions=[offer], proxy=None) as socket:
        assert [socket.recv(30) for _ in MESSAGES] == MESSAGES
        for message in MESSAGES:
            socket.send(message)
            assert socket.recv(30) == message
    for (compressed, length), message in zip(offer.agreed.seen, 2 * MESSAGES, strict=True):
        assert compressed == (len(message) >= WORTH_BYTES), len(message)
        assert length < len(message) / 4 if compressed else length == len(message)


def test_whoever_compresses_nothing_is_served_too(address):
    with connect(address, compression=None, proxy=None) as socket:
        assert [socket.recv(30) for _ in MESSAGES] == MESSAGES
