"""The protected table: the only thing that a site's answers about features are computed from.

Each person is in one group of at least p similar persons. A group releases each column once: the
middle value of its persons, rounded. To release it means to fix it in the table: messages are
computed from the records and the groups' sizes. Counts of outcomes are the exception: a site counts
them in its rows, and adds noise.

**Why more sessions give nothing finer.** Put a group's middle value in the place of every person's:
the table stays the same. So whatever records prove is also true of p identical persons. An older
copy of a site's state, with another newcomer, makes a group that overlaps with one before. The
newcomer's value does not follow: records are no sums. But whoever adds half of a group's persons,
and restores the older state again and again, reads the values of the others. Coordinators refuse a
restored state: that is not in this package.

**What remains possible.** A record is near to its persons, and is the rounded value of one of them.
Columns that depend on each other can prove that somebody has something, but not who. Whoever
controls all other persons of a group reads the last one. A coordinator may learn the complete
table. The threat model (docs/threat_model.md) has the list, ADR 0019 (docs/adr) the reasons.

Reading order. Each module starts with the rule that it enforces. A column is a ``SourceColumn`` (a
file's values), a ``TableColumn`` (how it is released) and a ``PinnedColumn`` (what was released).

1. ``columns``: what a group releases of a column
2. ``groups``: who may be grouped with whom where values are missing; groups of at least p
   persons; who waits
3. ``table``: the released records
4. ``cohort``: what a site remembers of its persons and releases; keyed hashes of ids and values
5. ``update``: newcomers and new columns of a file; unions of groups for a larger p
6. ``recognition``: which cohort a file belongs to; whether its persons are the known ones
7. ``message_checks``: checks on messages, made by the site and the coordinator
8. ``outcome_counts``: outcomes, which are counted with noise
"""
