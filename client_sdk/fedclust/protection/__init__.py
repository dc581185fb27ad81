"""The protected table: what a site's rows become before anything is computed for others.

Each person is put into a group of at least p similar persons. A group releases one record that all
of its persons could have. Everything that leaves a site is a function of these records and the
groups' sizes. See docs/adr/0016-the-protected-table.md.
"""
