"""``danlu operator manifests``."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.operator.common import flag_options, ignored_options, yaml_option

__all__ = ["command"]

#: What is deployed always elects: two run while one takes another's place.
_OWN = ("--leader-elect",)


@click.command(name="manifests", short_help="Write all that a cluster needs for the operator.")
@click.option("--image", required=True, metavar="REF", help="The image that has danlu in it.")
@click.option(
    "--install-namespace",
    default="danlu-system",
    show_default=True,
    metavar="NAME",
    help="Where the operator itself runs.",
)
@click.option(
    "--replicas", default=1, show_default=True, help="How many run; one acts, others stand by."
)
@click.option("--image-pull-secret", default="", metavar="NAME", help="For the image's registry.")
@flag_options(without=_OWN)
@ignored_options
@yaml_option
@verbosity_options
def command(
    image: str,
    install_namespace: str,
    replicas: int,
    image_pull_secret: str,
    form: Any,
    **flags: Any,
) -> None:
    """Write all that a cluster needs to run the operator, for kubectl apply --server-side -f -.

    Definitions, rights (the least that work), a Deployment. The flags of `danlu operator run` are
    given to the operator.
    """
    from danlu.commands.operator import Deployment, manifests, settings_of, text_of

    wanted = Deployment(
        image=image,
        namespace=install_namespace,
        replicas=replicas,
        pull_secret=image_pull_secret,
    )
    session().terminal.data(text_of(manifests(settings_of(flags), wanted), form=form))
