"""Settings of the coordinator: ``FEDCLUST_*``, ``.env``, and flags of the same names."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import (
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fedclust.schema.model import EmailAddress
from fedclust.wire.models import Line
from fedclust_service.addresses import host_of, is_address, is_loopback, masked_url
from fedclust_service.domain.notification import NotificationKind
from fedclust_service.exit_codes import SettingsError

PREFIX = "FEDCLUST_"
#: Settings of the sites' and analysts' commands, which may share a shell with the coordinator.
CLIENT_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "CA_BUNDLE",
        "COORDINATOR",
        "DEBUG",
        "PROGRESS",
        "PROXY",
        "SQL_URL",
        "STATE_DIR",
        "TOKEN",
        "TOKEN_FILE",
    )
)
MIN_KEY_LENGTH = 32
#: The usual port of a mail server, by ``smtp_security``.
_MAIL_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_DATABASES = ("sqlite:///", "postgresql+psycopg://")
#: Settings of notifications. An empty line of one in ``.env`` counts as not set.
OF_NOTIFICATIONS = ("smtp_", "webhook_", "notify_", "operator_emails", "public_url")

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Settings(BaseSettings):
    """All settings. The text below each field is the help of its flag."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    data_dir: Path = Path("fedclust-data")
    """Directory of the secret key and of the embedded database."""
    database_url: SecretStr | None = None
    """Address of the database: sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME; by default a
    file in the data directory."""
    secret_key: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Keys that tokens are signed with, separated by commas: the first signs, all verify. By
    default the file secret.key in the data directory."""
    secrets_dir: Path | None = None
    """Directory with one file for each setting, such as fedclust_database_url, as container engines
    mount secrets."""
    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on."""
    port: int = Field(8400, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    tls_cert: Path | None = None
    """PEM file of the server's certificate chain."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file: only clients with a certificate of these CAs may connect."""
    behind_proxy: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = ()
    """Networks (CIDR, separated by commas) of the reverse proxy that terminates TLS; X-Forwarded-*
    headers are accepted only from there."""
    body_limit: int = Field(32 * 2**20, ge=1_024, le=2**31)
    """Largest request body, in bytes."""
    body_timeout_s: Seconds = 300.0
    """Longest time that a request's body may take to arrive, in seconds."""
    max_connections: int | None = Field(None, ge=1, le=2**16)
    """Connections open at a time. By default as many as the limit on file descriptors allows, and
    4,096 at most."""
    requests_per_token: int = Field(16, ge=1, le=2**16)
    """Concurrent requests of one token, including those whose bodies still arrive; long polls are
    counted separately."""
    waits_per_token: int = Field(64, ge=1, le=2**16)
    """Concurrent long polls of one token: one for each session that a site takes part in."""
    long_poll_max: float = Field(25.0, ge=0, le=25, allow_inf_nan=False)
    """Longest wait of a task request, in seconds."""
    aggregation_timeout_s: Seconds = 600.0
    """Longest aggregation of a round, in seconds. A session whose closing round is estimated to
    take longer is refused when it is defined."""
    aggregation_processes: int = Field(2, ge=1, le=64)
    """Separate processes that aggregate the rounds that take longer than 0.1 s. Each has low
    priority and uses one processor."""
    lease_s: Seconds = 30.0
    """Duration of a worker's lease on a round, in seconds."""
    sweep_every_s: Seconds = 1.0
    """Time between two checks of deadlines, in seconds."""
    clock_limit_s: Seconds = 60.0
    """How far a machine's clock may differ from the coordinator's time, in seconds; beyond that the
    coordinator does not start, or is not ready."""
    retention_days: int = Field(30, ge=0, le=36_500)
    """Days after a session's end until its payloads are deleted. Hashes and receipts stay."""
    sign_in_idle_minutes: int = Field(30, ge=5, le=1_440)
    """Minutes without use after which a browser must sign in again."""
    sign_in_hours: int = Field(12, ge=1, le=168)
    """Hours after which a browser must sign in again, however often it is used. It applies to those
    who sign in from then on."""
    operated_by: Line = ""
    """Who runs this coordinator: name, organisation, address. Sites read it before they consent; a
    change needs new approvals there."""
    public_url: str | None = None
    """Address at which sites and analysts reach this coordinator, for the text of notifications,
    such as https://coordinator.example."""
    notify_kinds: Annotated[tuple[NotificationKind, ...], NoDecode] = Field(
        tuple(NotificationKind),
        description="Kinds of notifications to send, separated by commas; by default all: "
        + ", ".join(NotificationKind)
        + ".",
    )
    operator_emails: Annotated[tuple[EmailAddress, ...], NoDecode] = ()
    """E-mail addresses of operators, separated by commas, in addition to those of operators'
    accounts."""
    smtp_host: str | None = Field(None, min_length=1)
    """Mail server. Without it no mail is sent."""
    smtp_port: int | None = Field(None, ge=1, le=65_535)
    """Port of the mail server; by default 587 for starttls, 465 for tls, 25 for none."""
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    """Encryption to the mail server: starttls, tls from the first byte, or none, which is allowed
    only to this machine."""
    smtp_user: str | None = Field(None, min_length=1)
    """User at the mail server, if it asks for one."""
    smtp_password: SecretStr | None = None
    """Password of smtp_user."""
    smtp_from: EmailAddress | None = None
    """Address that mail comes from."""
    webhook_url: SecretStr | None = None
    """Address that notifications are posted to: https, or http on this machine. Without it none are
    posted."""
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts that webhook_url may name, without port, separated by commas."""
    webhook_secret: SecretStr | None = None
    """Key that posted notifications are signed with, at least 32 characters."""
    notify_ca: Path | None = None
    """PEM file of certificate authorities to trust, besides the system's, for the mail server and
    the webhook."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    log_format: Literal["json", "console"] = "json"
    """Format of the log lines on stderr."""
    shutdown_grace_s: int = Field(1, ge=1, le=600)
    """Time for open requests to finish at shutdown, in seconds."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        return {
            name: value
            for name, value in values.items()
            if value != "" or not name.startswith(OF_NOTIFICATIONS)
        }

    @field_validator("smtp_host")
    @classmethod
    def _host_without_port(cls, value: str | None) -> str | None:
        if value is not None and ("/" in value or (":" in value and not is_address(value))):
            raise ValueError("give the name of the mail server alone, and its port in smtp_port")
        return value

    @field_validator(
        *("behind_proxy", "secret_key", "notify_kinds", "operator_emails", "webhook_hosts"),
        mode="before",
    )
    @classmethod
    def _split_texts(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("notify_kinds")
    @classmethod
    def _some_kind(cls, value: tuple[NotificationKind, ...]) -> tuple[NotificationKind, ...]:
        if not value:
            raise ValueError("name at least one kind")
        return value

    @field_validator("public_url")
    @classmethod
    def _plain_url(cls, value: str | None) -> str | None:
        if value is not None and (host_of(value) is None or "?" in value):
            raise ValueError("use https://HOST[:PORT], without user, query and fragment")
        return None if value is None else value.rstrip("/")

    @field_validator("secret_key")
    @classmethod
    def _long_keys(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(len(key.get_secret_value()) < MIN_KEY_LENGTH for key in value):
            raise ValueError(f"each key needs at least {MIN_KEY_LENGTH} characters")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(_DATABASES):
            raise ValueError("use sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME")
        return value

    @model_validator(mode="after")
    def _certificates(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: set both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _mail(self) -> Settings:
        if self.smtp_host is None:
            if self.operator_emails or self.smtp_from or self.smtp_user:
                raise ValueError("operator_emails, smtp_from and smtp_user need smtp_host")
            return self
        if self.smtp_from is None:
            raise ValueError("smtp_host needs smtp_from, the address that mail comes from")
        if (self.smtp_user is None) != (self.smtp_password is None):
            raise ValueError("smtp_user and smtp_password go together: set both")
        if self.smtp_security == "none" and not is_loopback(self.smtp_host):
            raise ValueError("smtp_security none is allowed only if smtp_host is this machine")
        return self

    @model_validator(mode="after")
    def _webhook(self) -> Settings:
        if self.webhook_url is None:
            return self
        url = self.webhook_url.get_secret_value()
        host = host_of(url)
        if host is None or not (url.startswith("https://") or is_loopback(host)):
            raise ValueError(
                "webhook_url: use https://HOST[:PORT]/PATH, without user and fragment; http only "
                "on this machine"
            )
        if host not in {name.lower() for name in self.webhook_hosts}:
            allowed = ", ".join(self.webhook_hosts) or "empty"
            raise ValueError(
                f"webhook_url: its host {host} is not one of webhook_hosts, which is {allowed}; "
                "name hosts there without port"
            )
        secret = self.webhook_secret
        if secret is None or len(secret.get_secret_value()) < MIN_KEY_LENGTH:
            raise ValueError(
                f"webhook_url needs webhook_secret with at least {MIN_KEY_LENGTH} characters"
            )
        return self

    @property
    def mail_port(self) -> int:
        """The port of the mail server."""
        return self.smtp_port or _MAIL_PORTS[self.smtp_security]

    @property
    def tls(self) -> bool:
        """Whether this process terminates TLS."""
        return self.tls_cert is not None

    @property
    def key_file(self) -> Path:
        """Where ``init`` keeps the secret key."""
        return self.data_dir / "secret.key"

    @property
    def store_url(self) -> str:
        """The database's URL. It may hold a password: never print it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir / 'fedclust.db'}"

    def check_listening(self) -> None:
        """Raise SettingsError if this would listen on a network without TLS."""
        if not (is_loopback(self.host) or self.tls or self.behind_proxy):
            raise SettingsError(
                "listening beyond loopback needs TLS: set --tls-cert and --tls-key, or "
                "--behind-proxy with the network of the proxy that ends TLS"
            )

    def ssl_context(self) -> ssl.SSLContext:
        """Return the server's TLS context: TLS 1.2 at least, client certificates if asked for.

        SettingsError if a file cannot be read or does not hold what it should.
        """
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if not os.access(path, os.R_OK):
                raise SettingsError(f"{name}: {path} is not there, or this account may not read it")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(str(self.tls_cert), str(self.tls_key), _no_password)
        except OSError:  # ssl.SSLError is one; its text does not help
            message = "tls_cert and tls_key: give a certificate and its private key, both as PEM"
            raise SettingsError(message) from None
        if self.tls_client_ca is not None:
            trust(context, "tls_client_ca", self.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def shown(self) -> dict[str, str]:
        """Return every setting as text, secrets masked."""
        shown = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "database_url":
                value = masked_url(self.store_url)
            elif name == "secret_key":
                value = f"{len(value)} set" if value else f"in {self.key_file}"
            elif name == "webhook_url" and value is not None:
                # At some receivers the path is the secret.
                scheme, _, rest = value.get_secret_value().partition("://")
                value = f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/***"
            elif isinstance(value, tuple):
                value = ",".join(str(item) for item in value)
            shown[name] = "" if value is None else str(value)
        return shown


def _no_password() -> str:
    # Otherwise the interpreter would ask on the terminal, and a service would hang.
    raise SettingsError(
        "tls_key is encrypted: use a key without a passphrase, readable by you only"
    )


def trust(context: ssl.SSLContext, name: str, path: Path) -> None:
    """Trust the certificate authorities of a setting's file; SettingsError if it has none."""
    try:
        context.load_verify_locations(str(path))
    except ssl.SSLError:
        raise SettingsError(f"{name}: {path} holds no PEM certificate") from None
    except OSError as error:
        raise SettingsError(f"{name}: {path} cannot be read: {error.strerror}") from None


def load_settings(
    flags: Mapping[str, str | None], env_file: Path | None = Path(".env")
) -> Settings:
    """Read flags, the environment, ``.env`` and secret files; the first value of a setting wins.

    SettingsError if a value is invalid, or a ``FEDCLUST_*`` variable or file is no setting.
    """
    written = dotenv_values(env_file) if env_file else {}
    folder = _secrets_folder(flags, written)
    files = {path.name: None for path in folder.iterdir()} if folder else {}
    unknown = sorted(_unknown(os.environ) | _unknown(written) | _unknown(files))
    if unknown:
        raise SettingsError(
            f"unknown settings: {', '.join(unknown)}; `fedclust-service config show` lists them"
        )
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(_env_file=env_file, _secrets_dir=folder, **given)
    except ValidationError as error:
        raise SettingsError("; ".join(_setting_faults(error))) from None


def _secrets_folder(
    flags: Mapping[str, str | None], written: Mapping[str, str | None]
) -> Path | None:
    name = f"{PREFIX}SECRETS_DIR"
    given = flags.get("secrets_dir") or os.environ.get(name) or written.get(name)
    if not given:
        return None
    folder = Path(given)
    if not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        raise SettingsError(f"secrets_dir: {folder} is not a directory that can be read")
    return folder


def _unknown(variables: Mapping[str, str | None]) -> set[str]:
    known = {(PREFIX + name).upper() for name in Settings.model_fields} | CLIENT_VARIABLES
    names = {name.upper() for name in variables}
    return {name for name in names if name.startswith(PREFIX)} - known


def _setting_faults(error: ValidationError) -> list[str]:
    faults = []
    for item in error.errors(include_url=False, include_input=False):
        # A message about several settings names them itself.
        name = f"{item['loc'][0]}: " if item["loc"] else ""
        message = item["msg"].removeprefix("Value error, ")
        if name == "behind_proxy: ":
            message = "use networks such as 10.0.0.0/24"
        elif name in ("operator_emails: ", "smtp_from: "):
            which = f"address {int(item['loc'][1]) + 1}" if len(item["loc"]) > 1 else "this"
            message = f"{which} is no e-mail address; use one such as it@hospital.example"
        faults.append(name + message)
    return faults
