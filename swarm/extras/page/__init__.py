"""The local web page of the nodes on this machine; the report, which is the page frozen to a file; and the site, a
swarm's page for everybody.

It reads the nodes' directories and writes nothing there: telemetry/nodes.py ──▶ site.py ──▶ server.py, report.py or
public.py, with assets/ in the browser.
"""
