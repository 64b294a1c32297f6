"""For all tests: `hayrunner` is imported before Haystack, which otherwise reports to its makers
that it was, and what is built with it."""

import hayrunner

assert hayrunner
