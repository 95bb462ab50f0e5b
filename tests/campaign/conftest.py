"""The log format."""

import structlog

# structlog's default renders tracebacks with all local variables, which takes most of the time of some tests
structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()])
