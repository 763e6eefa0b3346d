# The router, and the launcher that engine pods copy: docker build -f images/runtime.Dockerfile -t phasewise/runtime .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN python3 -m venv /opt/venv
WORKDIR /source
# Dependencies in their own layer: a change of the code does not install them again.
COPY pyproject.toml images/requirements.py ./
RUN python3 requirements.py router > requirements.txt \
    && /opt/venv/bin/python -m pip install --no-cache-dir -r requirements.txt
COPY . .
RUN /opt/venv/bin/python -m pip install --no-cache-dir --no-deps . \
    && /opt/venv/bin/python -m phasewise_runtime.engine.pack /opt/phasewise/launcher.pyz \
    && /opt/venv/bin/python -m pip uninstall --yes --quiet pip setuptools

FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/phasewise /opt/phasewise
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["phasewise-router"]
