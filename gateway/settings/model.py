"""What every part of the configuration is made of."""

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from gateway.settings.tls import check_pair
from gateway.settings.values import CertificateFile, FilePath


class Model(BaseModel):
    """A mapping with fixed keys; an empty one means its defaults."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_default(cls, data: object) -> object:
        return {} if data is None else data  # `cache:` with every line below it commented out


class TlsFiles(Model):
    """Who is trusted beyond what the system trusts, and what the gateway shows of itself."""

    ca_file: CertificateFile | None = None
    """A PEM file of authorities trusted besides the system's."""
    client_cert: CertificateFile | None = None
    """A PEM file: the gateway's certificate."""
    client_key: FilePath | None = None
    """A PEM file: the certificate's key, when it is not in the same file."""

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.client_key and not self.client_cert:
            raise ValueError("client_key needs client_cert beside it")
        if self.client_cert and not self.client_key:
            check_pair(self.client_cert, None)
        return self

    @field_validator("client_key")
    @classmethod
    def _key_opens(cls, key: str | None, info: ValidationInfo) -> str | None:
        certificate = info.data.get("client_cert")
        if key and certificate:
            check_pair(certificate, key)
        return key
