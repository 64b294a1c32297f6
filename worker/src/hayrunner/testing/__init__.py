"""Doubles that ship with the package: real servers on loopback, never mocks."""
