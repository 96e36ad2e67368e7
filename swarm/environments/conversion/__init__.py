"""Converts data sets row by row, within limits on rows, bytes and memory."""
