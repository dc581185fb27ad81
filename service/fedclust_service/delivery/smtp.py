"""Sends mail through one SMTP server, with the standard library."""

import contextlib
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime

from fedclust_service.domain.notification import Body, DeliveryFailed
from fedclust_service.settings import Settings

#: Longest wait for a part of an answer, and longest time for a whole mail, however slowly the
#: server answers. Some servers wait for 20 s before they greet, against senders of spam.
TIMEOUT_S = 10.0
DEADLINE_S = 60.0
#: Folding at 78 columns could leave the first line of a long subject empty. SMTP allows 998.
_POLICY = policy.SMTP.clone(max_line_length=990)
#: The code of a server that takes mail only after a login.
_LOGIN_NEEDED = 530
_READY = 220


class SmtpSender:
    """Sends one mail for each notification, over a connection of its own."""

    def __init__(self, settings: Settings, context: ssl.SSLContext) -> None:
        self._settings, self._context = settings, context
        self._sender, self._host = settings.smtp_from or "", settings.smtp_host or ""
        self._place = f"{self._host} port {settings.mail_port}"

    def send(self, body: Body, address: str | None, now: datetime) -> str:
        """Send a notification to an address; DeliveryFailed if it was not accepted."""
        assert address is not None, "a mail has a recipient"  # noqa: S101
        message = mail(self._sender, body, address, now)
        with _explained(self._place), self._connection() as smtp:
            smtp.send_message(message, self._sender, [address])
            # The server has accepted the mail: a failure of QUIT must not send it again.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                smtp.quit()
        return "the mail server has accepted it"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[smtplib.SMTP]:
        """Connect; DeliveryFailed if the connection is still used at the deadline."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            if smtp.sock is not None:
                # Below TLS. It wakes the thread that waits for an answer.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(smtp.sock, socket.SHUT_RDWR)

        if self._settings.smtp_security == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(timeout=TIMEOUT_S, context=self._context)
        else:
            smtp = smtplib.SMTP(timeout=TIMEOUT_S)
        # The name that the certificate has to have. The constructor would set it and connect, and
        # nobody could cut the connection before it returns.
        smtp._host = self._host  # type: ignore[attr-defined]
        timer = threading.Timer(DEADLINE_S, cut)
        timer.daemon = True
        timer.start()
        try:
            code, message = smtp.connect(self._host, self._settings.mail_port)
            if code != _READY:
                raise smtplib.SMTPConnectError(code, message)
            self._sign_in(smtp)
            yield smtp
        except (smtplib.SMTPException, OSError):
            if late.is_set():
                raise DeliveryFailed(
                    f"smtp_host, smtp_port: {self._place} has not taken a mail in {DEADLINE_S:g} s"
                ) from None
            raise
        finally:
            timer.cancel()
            smtp.close()

    def _sign_in(self, smtp: smtplib.SMTP) -> None:
        settings = self._settings
        smtp.ehlo_or_helo_if_needed()
        if settings.smtp_security == "starttls":
            if not smtp.has_extn("starttls"):
                raise DeliveryFailed(
                    f"smtp_security: {self._place} offers no STARTTLS: "
                    "set tls, or none for a server on this machine"
                )
            smtp.starttls(context=self._context)
            smtp.ehlo_or_helo_if_needed()
        if settings.smtp_user is not None and settings.smtp_password is not None:
            if not smtp.has_extn("auth"):
                raise DeliveryFailed(f"smtp_user: {self._place} offers no login")
            smtp.login(settings.smtp_user, settings.smtp_password.get_secret_value())


def mail(sender: str, body: Body, address: str, now: datetime) -> EmailMessage:
    """Return a notification as a mail: plain text, its first line as the subject."""
    message, text, new = EmailMessage(policy=_POLICY), str(body["text"]), str(body["id"])
    message["From"] = sender
    message["To"] = address
    message["Subject"] = f"fedclust: {text.splitlines()[0]}"
    message["Date"] = format_datetime(now)
    # The same for each attempt: a mail program shows a mail that arrives twice once.
    message["Message-ID"] = f"<{new}@{sender.rpartition('@')[2]}>"
    message["Fedclust-Notification-Id"] = new
    # No automatic reply, such as an absence note, is sent back.
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


@contextlib.contextmanager
def _explained(place: str) -> Iterator[None]:
    """Turn every failure into DeliveryFailed with the setting to look at, without server text."""
    try:
        yield
    except smtplib.SMTPRecipientsRefused as error:
        (code,) = (code for code, _ in error.recipients.values())
        advice = f"recipient ({code}): correct the address of the account or operator_emails"
        raise _refused(code, " to the recipient", advice, final=True) from None
    except smtplib.SMTPAuthenticationError as error:
        raise DeliveryFailed(
            f"smtp_user, smtp_password: the mail server refuses them ({error.smtp_code})"
        ) from None
    except smtplib.SMTPSenderRefused as error:
        advice = f"sender ({error.smtp_code}): correct smtp_from"
        raise _refused(error.smtp_code, "", advice) from None
    except smtplib.SMTPResponseException as error:
        raise DeliveryFailed(f"the mail server refuses the mail ({error.smtp_code})") from None
    except smtplib.SMTPException as error:
        raise DeliveryFailed(
            f"smtp_host, smtp_port, smtp_security: no SMTP with {place} ({type(error).__name__})"
        ) from None
    except OSError as error:
        raise DeliveryFailed(_connection_fault(place, error)) from None


def _refused(code: int, to: str, advice: str, *, final: bool = False) -> DeliveryFailed:
    if code < 500:  # such as greylisting
        return DeliveryFailed(f"the mail server takes no mail{to} now ({code}), which is temporary")
    if code == _LOGIN_NEEDED:
        return DeliveryFailed(
            f"smtp_user, smtp_password: the mail server asks for a login ({code}); set both"
        )
    return DeliveryFailed(f"the mail server refuses the {advice}", final=final)


def _connection_fault(place: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"notify_ca: the certificate of {place} is not trusted"
    if isinstance(error, ssl.SSLError):
        return f"smtp_security, smtp_port: no TLS with {place}"
    if isinstance(error, socket.gaierror):
        return f"smtp_host: there is no address for {place}"
    if isinstance(error, ConnectionRefusedError):
        return f"smtp_host, smtp_port: nothing listens at {place}"
    if isinstance(error, TimeoutError):
        return f"smtp_host, smtp_port: no answer from {place} in {TIMEOUT_S:g} s"
    return f"smtp_host, smtp_port: no connection to {place}"
