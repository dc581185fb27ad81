"""Why the sites of a test's session take part."""

PURPOSE = "Which groups of patients do these sites share?"
