"""The protected table: the only thing that a site's answers to others are computed from.

Each person is put into a group of at least p similar persons. A group releases one record that all
of its persons could have. Everything that leaves a site is a function of these records and the
groups' sizes. See docs/adr/0019-the-protected-table-releases-middle-values.md.

Reading order. Each module starts with the rule that it enforces.

1. ``columns``: how a column is released: its step, its centre, the order of its levels
2. ``records``: what a group releases
3. ``parts``: who may be grouped with whom where values are missing, and how large groups are
4. ``groups``: which similar persons are a group
5. ``table``: the released records; their variance within groups
6. ``cohort``: what a site remembers of its persons and releases
7. ``unions``: unions of groups for a larger p
8. ``update``: newcomers and new columns of a source
9. ``recognition``: which cohort a source belongs to; whether its persons are the known ones
10. ``fingerprints``: keyed hashes of ids and values
11. ``figures``, ``resolution``: how close the records are to the persons; a warning on results
12. ``size_bands``, ``message_checks``: checks on messages, made by the site and the coordinator
13. ``outcome_counts``, ``privacy_loss``: outcomes, which are counted with noise
"""
