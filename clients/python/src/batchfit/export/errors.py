"""What can be wrong with a request to export."""


class ExportError(Exception):
    """The model cannot be exported as asked. The message says what is wrong and what would be right."""
