# The operator: docker build -f images/operator.Dockerfile -t phasewise/operator .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN python3 -m venv /opt/venv
WORKDIR /source
# Dependencies in their own layer: a change of the code does not install them again.
COPY pyproject.toml images/requirements.py ./
RUN python3 requirements.py operator > requirements.txt \
    && /opt/venv/bin/python -m pip install --no-cache-dir -r requirements.txt
COPY . .
RUN /opt/venv/bin/python -m pip install --no-cache-dir --no-deps . \
    && /opt/venv/bin/python -m pip uninstall --yes --quiet pip setuptools

FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["phasewise-operator"]
