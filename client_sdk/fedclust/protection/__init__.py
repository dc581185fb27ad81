"""The protected table: the only thing that a site's answers to others are computed from.

Each person is put into a group of at least p similar persons. A group releases one record that all
of its persons could have. Everything that leaves a site is a function of these records and the
groups' sizes. See docs/adr/0016-the-protected-table.md.

Reading order. Each module starts with the rule that it enforces.

1. ``columns``: how a column is released: rounding step, fences, levels
2. ``groups``: who is grouped with whom
3. ``records``: what a group releases
4. ``table``: from persons to groups to released records; unions of groups for a larger p
5. ``cohort``: what a site remembers of its persons and releases
6. ``releases``: when a group releases a column, and when it does so again
7. ``update``: newcomers, corrections and new columns of a source
8. ``recognition``: which cohort a source belongs to; changed ids and renamed columns
9. ``fingerprints``: keyed hashes of ids and values
10. ``figures``, ``resolution``: how close the records are to the persons; a warning on results
11. ``size_bands``, ``message_checks``: checks on messages, made by the site and the coordinator
"""
