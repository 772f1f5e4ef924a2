"""`dragoman request`: one HTTP request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import aiohttp
import click

from proxy.cli.printing import clean, fail


@click.command(short_help="Make one HTTP request and print the body of the answer.")
@click.argument("url")
@click.option("-X", "--request", "method", help="The method; POST with -d, else GET.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="A header.")
@click.option("-d", "--data", help="The body.")
def request(url: str, method: str | None, headers: tuple[str, ...], data: str | None) -> None:
    """Make one HTTP request and print the body of the answer, whatever its status.

    For the samples of the demo on machines without curl; the options are curl's.
    """
    fields = [header.partition(":") for header in headers]
    if any(not colon for _, colon, _ in fields):
        raise click.UsageError("a header is written as `NAME: VALUE`")
    given = [(name.strip(), value.strip()) for name, _, value in fields]
    asyncio.run(_request(url, method or ("GET" if data is None else "POST"), given, data))


async def _request(
    url: str, method: str, headers: Sequence[tuple[str, str]], data: str | None
) -> None:
    out = sys.stdout.buffer
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.request(
                method, url, headers=list(headers), data=data, allow_redirects=False
            ) as response,
        ):
            async for chunk in response.content.iter_any():
                out.write(chunk)
                out.flush()
    except (aiohttp.ClientError, ValueError, OSError) as error:
        fail(f"{clean(url)} cannot be asked: {clean(str(error))}")
