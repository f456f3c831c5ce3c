"""Make keys, and choose which keys are trusted."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

from parallax_core.api import JoinCodes, ParallaxError, keys_folder
from parallax_transport_zmq.keyfile import NodeRole, parse_key
from parallax_transport_zmq.keyring import DEFAULT, Keyring
from parallax_transport_zmq.token import make_token, read_token

STANDARD_INPUT = "-"

app = typer.Typer(
    help="Make keys, and choose which keys are trusted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="The node's name; it holds for nodes called NAME/... too.")]


@app.callback()
def keys() -> None:
    """Make keys, and choose which keys are trusted."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The node it is for; by default any node of this machine.")] = DEFAULT,
) -> None:
    """Make a key for nodes of this machine, and print its public half."""
    ring = Keyring(keys_folder())
    public = ring.make(name).public.hex()
    typer.echo(public)
    called = "NAME" if name == DEFAULT else name
    typer.echo(f"The secret half is in {ring.folder}, and stays there.", err=True)
    typer.echo(f"On every other machine: parallax keys allow {public} {called}", err=True)


@app.command(name="list")
def show() -> None:
    """Show the public halves of all keys. Each is this machine's own, allowed, or was removed."""
    ring = Keyring(keys_folder())
    ring.check_folders()
    found, removed = list(ring.list_keys()), ring.list_removed()
    width = max(map(len, (*(key.name for key in found), *removed.values())), default=0)
    for key in found:
        role = "" if key.role == "any" else f"  {key.role}"
        typer.echo(f"{key.name:<{width}}  {'own' if key.is_own else 'allowed':<7}  {key.public.hex()}{role}")
    for public, name in sorted(removed.items(), key=lambda each: each[1]):
        typer.echo(f"{name:<{width}}  removed  {public.hex()}")
    if not found and not removed:
        typer.echo("There are no keys; `parallax keys new` makes one.", err=True)


@app.command()
def allow(
    public_key: Annotated[str, typer.Argument(help="The output of `parallax keys new` there.")],
    name: Name,
    role: Annotated[
        NodeRole, typer.Option(help="The role it may have for nodes of this machine.", metavar="any|worker|head")
    ] = "any",
) -> None:
    """Trust a key. Its holder may connect to nodes of this machine, as the node NAME.

    A server accepts keys of workers; a worker accepts the head's key and those of other workers. Repeat the command to
    change a key's role. A key that was removed is allowed again.
    """
    Keyring(keys_folder()).allow(parse_key(public_key), name, role)


@app.command()
def remove(
    context: typer.Context,
    name: Name,
    own: Annotated[bool, typer.Option("--own", help="A key of this machine, not one that is allowed.")] = False,  # noqa: FBT002 -- a flag
    revoke_codes: Annotated[bool, typer.Option("--revoke-codes", help="Revoke all join codes, too.")] = False,  # noqa: FBT002 -- a flag
) -> None:
    """Stop trusting a key. Links to its holder end within a second.

    No join code admits that key again, until `parallax keys allow` does. A code that is still valid admits other keys,
    which the machine can make, too.
    """
    Keyring(keys_folder()).remove(name, own=own)
    codes: JoinCodes | None = context.obj
    if codes is not None and not own:
        tell_of_codes(codes, revokes=revoke_codes)


def tell_of_codes(codes: JoinCodes, *, revokes: bool) -> None:
    """Revoke the codes that still admit machines, or say which do.

    Raises:
        ParallaxError: if they cannot be read or written.
    """
    valid = codes.describe_valid()
    if revokes:
        for name in valid:
            codes.revoke(name)
        typer.echo(f"Revoked join codes: {', '.join(valid) or 'none, since none was valid'}.", err=True)
    elif valid:
        typer.echo("These join codes still admit machines, and this one if it makes a new key:", err=True)
        for name, rest in valid.items():
            typer.echo(f"  {name}: {rest}", err=True)
        typer.echo(f"To revoke them: parallax cluster codes revoke {' '.join(valid)}", err=True)


@app.command()
def token() -> None:
    """Print a token for `parallax keys join` on another machine.

    It holds the secret half of this machine's key, so that both machines have the same identity.
    """
    ring = Keyring(keys_folder())
    pair = ring.find_pair(DEFAULT)
    if pair is None:
        raise ParallaxError("this machine has no key 'default'", "make one: `parallax keys new`")
    typer.echo(make_token(pair.secret))
    typer.echo("The holder of this token may join, and act as any node.", err=True)
    typer.echo("On the other machine: parallax keys join -", err=True)


@app.command()
def join(
    token: Annotated[str, typer.Argument(help="The output of `parallax keys token`; `-` reads standard input.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the key this machine has.")] = False,  # noqa: FBT002 -- a flag
) -> None:
    """Take over the key of another machine. Nodes here and there then trust each other.

    `parallax keys join -` keeps the token out of the history of the shell.
    """
    ring = Keyring(keys_folder())
    secret = read_token(_read_secret() if token == STANDARD_INPUT else token)
    typer.echo(ring.adopt(secret, replaces=force).public.hex())
    typer.echo(f"The secret half is in {ring.folder}; nodes of all machines that have it trust each other.", err=True)


def _read_secret() -> str:
    return getpass.getpass("token: ") if sys.stdin.isatty() else sys.stdin.readline()
