"""The local web page of the nodes on this machine, and the report, which is the page frozen to a file.

It reads the nodes' directories and writes nothing there: telemetry/nodes.py ──▶ site.py ──▶ server.py or report.py,
with assets/ in the browser.
"""
