"""``python -m kaas`` is the ``kaas`` command."""

from kaas.client.cli import main

if __name__ == "__main__":
    main()
