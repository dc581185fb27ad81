"""The figures of a result, for its report, its page and notebooks: ``result.plot.profile()``.

One module a subject; each function returns a :class:`~fedclust.result.drawing.Figure`.
"""
