"""`soup edit`: changes tags, description, license, metadata, domain and owner of adapters and soups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import typer
from pydantic import TypeAdapter, ValidationError

from adaptersoup.cli.adapter_filters import Confirmation, Matching, check_names_or_filters, matching_adapters
from adaptersoup.cli.failures import Failures
from adaptersoup.cli.flags import key_values, usage_error
from adaptersoup.cli.remote import Remote, complete_ref, verb
from adaptersoup.client import SoupClient
from registry.errors import InvalidParameter, Unavailable
from registry.spec import Card, Owner

OWNER: TypeAdapter[str | None] = TypeAdapter(Owner | None)
_NAMES = {"tags": "--add-tag", "metadata": "--metadata", "license": "--license", "description": "--description"}


@dataclass(frozen=True)
class Changes:
    """The options for the changes; an empty text removes the value."""

    SECTION: ClassVar[str] = "Changes"
    add_tag: Annotated[list[str] | None, typer.Option(help="Tag to add; repeatable.")] = None
    remove_tag: Annotated[list[str] | None, typer.Option(help="Tag to remove; repeatable.")] = None
    description: Annotated[str | None, typer.Option(help="New description; an empty text removes it.")] = None
    license: Annotated[str | None, typer.Option(help="New license; an empty text removes it.")] = None
    metadata: Annotated[list[str] | None, typer.Option(help="Field to set; repeatable.", metavar="K=V")] = None
    remove_metadata: Annotated[list[str] | None, typer.Option(help="Field to remove; repeatable.", metavar="K")] = None
    new_domain: Annotated[str | None, typer.Option("--set-domain", help="New domain label.", metavar="DOMAIN")] = None
    new_owner: Annotated[
        str | None,
        typer.Option(
            "--set-owner", help="New owner of the name with all its versions; an owner has no rights.", metavar="OWNER"
        ),
    ] = None

    def card(self, card: Card) -> Card:
        """The card with the changes; raises a usage error for values that a card does not accept."""
        tags = [tag for tag in dict.fromkeys([*card.tags, *(self.add_tag or ())]) if tag not in (self.remove_tag or ())]
        metadata = {**card.metadata, **key_values(self.metadata or (), "--metadata")}
        for key in self.remove_metadata or ():
            metadata.pop(key, None)
        values = {**card.model_dump(), "tags": tuple(tags), "metadata": metadata}
        if self.description is not None:
            values["description"] = self.description
        if self.license is not None:
            values["license"] = self.license or None
        try:
            return Card.model_validate(values)
        except ValidationError as error:
            raise usage_error(error, _NAMES) from None

    def check_owner(self) -> None:
        """Raise a usage error if the new owner is not valid."""
        try:
            OWNER.validate_python(self.new_owner or None)
        except ValidationError as error:
            raise usage_error(error, {"": "--set-owner"}) from None

    def any(self) -> bool:
        """Return True if there is any change."""
        return any(value not in (None, []) for value in vars(self).values())

    def any_of_card(self) -> bool:
        """Return True if there is any change of the card."""
        return replace(self, new_domain=None, new_owner=None).any()


@verb
def edit(
    remote: Remote,
    refs: Annotated[
        list[str] | None,
        typer.Argument(help="Names; without @version the newest.", metavar="REF...", autocompletion=complete_ref),
    ] = None,
    *,
    changes: Changes,
    matching: Matching,
    confirmation: Confirmation,
) -> None:
    """Change card, domain and owner of adapters and soups.

    Prints the changed versions. With filters instead of names, all versions that `soup ls` lists for them are changed,
    after a confirmation. Bytes and digests stay; selectors of their pools are fitted again.

    \b
    Examples:
      soup edit team/law --add-tag reviewed --remove-tag draft
      soup edit team/law@2 --description "Contracts of 2026." --license cc-by-4.0 --metadata by=ana
      soup edit --domain law --set-owner legal@team.example --yes
      soup edit --namespace team --tag v1 --remove-tag v1 --add-tag v2 --dry-run
    """
    if not changes.any():
        raise typer.BadParameter("Name a change, such as --add-tag or --description.")
    changes.card(Card())
    changes.check_owner()
    check_names_or_filters(refs or (), matching)
    failed = Failures()
    rows = _adapters_named(remote.client, refs, failed) if refs else matching_adapters(remote.client, matching)
    if not rows and not failed:
        remote.answer({"object": "list", "data": []}, note="Nothing matches.")
        return
    outdated = []
    for row in rows:
        with failed.of(row["ref"]):
            if _differs(row, changes):
                outdated.append(row)
    if outdated and (confirmation.dry_run or not refs) and not confirmation.confirm("changed", outdated):
        remote.answer({"object": "list", "data": outdated}, *(str(row["ref"]) for row in outdated))
        failed.end()
        return
    changed = []
    for row in outdated:
        with failed.of(row["ref"]):
            changed.append(_change(remote.client, row["ref"], changes))
    note = "" if changed or failed else "No version needs a change."
    remote.answer({"object": "list", "data": changed}, *(str(row["ref"]) for row in changed), note=note)
    failed.end()


def _adapters_named(client: SoupClient, refs: list[str], failed: Failures) -> list[dict[str, Any]]:
    rows = []
    for ref in refs:
        with failed.of(ref):
            rows.append(client.adapter(ref))
    return rows


def _differs(row: dict[str, Any], changes: Changes) -> bool:
    """Return True if the changes would change an adapter; raises the errors of `_changed_card`."""
    return (
        _changed_card(row, changes) is not None
        or changes.new_domain not in (None, row["domain"])
        or changes.new_owner not in (None, row.get("owner") or "")
    )


def _changed_card(row: dict[str, Any], changes: Changes) -> Card | None:
    """The card of an adapter with the changes; None if it stays as it is.

    Raises Unavailable for a card with fields of a newer server, which would lose them, and InvalidParameter if the card
    has no room for the changes.
    """
    if not changes.any_of_card():
        return None
    try:
        stored = Card.model_validate(row["card"])
        card = changes.card(stored)
    except ValidationError:
        raise Unavailable(
            "The card has fields that this version does not know: install the server's version."
        ) from None
    except typer.BadParameter as error:
        raise InvalidParameter(error.message) from None
    return None if card == stored else card


def _change(client: SoupClient, ref: str, changes: Changes) -> dict[str, Any]:
    """Change one version as it is now; raises PreconditionFailed if others change it meanwhile."""
    row = client.adapter(ref)
    if not _differs(row, changes):  # the owner was set with another version of the name
        return row
    return client.update_adapter(
        ref,
        card=_changed_card(row, changes),
        domain=changes.new_domain,
        owner=changes.new_owner,
        if_match=row["etag"],
    )
