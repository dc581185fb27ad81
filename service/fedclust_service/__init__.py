"""The coordinator."""

import sys


def main() -> int:
    """Run ``fedclust-service``; say what to install if its packages are missing."""
    try:
        from fedclust_service import cli

        return cli.main()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "fedclust", "fedclust_service"):
            raise
        message = f'the package {package} is missing: pip install "fedclust[service]"'
        sys.stderr.write(f"fedclust-service: {message}\n")
        return 3  # Exit.SETTINGS, as for PostgreSQL without its driver
