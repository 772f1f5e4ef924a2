"""Serve one scripted backend: `python -m proxy.scripted engine --port 8000 --key local`.

With `--faults SEED` it breaks streams on purpose, and tells on stderr which and how.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from aiohttp import web

from proxy.scripted import BACKENDS, Options
from proxy.scripted.faults import KINDS, SEEDED, Faults


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m proxy.scripted", description=__doc__)
    parser.add_argument("dialect", choices=sorted(BACKENDS))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--key", help="the only credential that passes")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on pauses, 0 for none")
    parser.add_argument(
        "--generation", choices=["T", "S1", "S2"], default="S2", help="which eve `eve` is"
    )
    parser.add_argument(
        "--faults", type=int, metavar="SEED", help="break streams; a seed breaks the same ones"
    )
    parser.add_argument(
        "--rate", type=_share, default=0.2, help="the share of streams that break, 0 to 1"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=sorted(KINDS),
        default=[kind.__name__ for kind in SEEDED],
        metavar="KIND",
        help=f"how they break: {', '.join(sorted(KINDS))} (default: %(default)s)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=1,
        metavar="N",
        help="the first conversation gets the faults of the Nth: repeats one alone",
    )
    return parser.parse_args(arguments)


def _share(word: str) -> float:
    share = float(word)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError("it is from 0 to 1")
    return share


async def serve(options: argparse.Namespace) -> None:
    """Serve until the process is told to stop."""
    faults = None
    if options.faults is not None:
        kinds = [KINDS[name] for name in options.kinds]
        faults = Faults.seeded(options.faults, options.rate, kinds, first=options.first)
        logging.basicConfig(format="%(message)s")
        logging.getLogger(Faults.__module__).setLevel(logging.INFO)
    told = Options(key=options.key, pace=options.pace, generation=options.generation, faults=faults)
    app = BACKENDS[options.dialect](told)
    # A reader that leaves must not leave its handler behind, waiting for the next heartbeat.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port)
        await site.start()
        host, port = runner.addresses[0][:2]
        sys.stdout.write(f"listening on http://{host}:{port}\n")
        sys.stdout.flush()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Run the command line."""
    asyncio.run(serve(parse(sys.argv[1:])))


if __name__ == "__main__":
    main()
