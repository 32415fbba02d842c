"""A TCP proxy whose connections can be cut, made silent and made slow, for scripts that hurt a network. Standard library only."""
import asyncio
import contextlib
import socket
import struct
import threading


class Network:
    """The thread that moves the bytes of all proxies."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def end(self):
        self.do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _end(self):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Proxy:
    """Passes everything on to a port of this machine, as long as it is not told otherwise."""

    def __init__(self, network, name, target):
        self.network, self.name, self.target = network, name, target
        self.writers, self.delay = set(), 0.0
        self.port = network.do(self._listen())

    def cut(self):
        """Resets all connections; new ones are served."""
        self.network.do(self._cut())

    def silence(self, silent):
        """Accepts connections and bytes, and passes nothing on until told otherwise; then what was held back arrives late."""
        self.network.do(self._silence(silent))

    def slow(self, delay):
        """Holds everything back for as many seconds."""
        self.delay = delay

    async def _listen(self):
        self.flows = asyncio.Event()
        self.flows.set()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def _silence(self, silent):
        self.flows.clear() if silent else self.flows.set()

    async def _cut(self):
        for writer in list(self.writers):
            # Closed without lingering, a connection is reset.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        other = None
        try:
            await self.flows.wait()
            there, other = await asyncio.open_connection("127.0.0.1", self.target)
            self.writers.add(other)
            ways = [asyncio.ensure_future(self._pass(reader, other)), asyncio.ensure_future(self._pass(there, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        # The latter when the network ends.
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, other):
                if one:
                    self.writers.discard(one)
                    one.transport.abort()

    async def _pass(self, reader, writer):
        while data := await reader.read(65536):
            await self.flows.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        await self.flows.wait()
        writer.write_eof()
