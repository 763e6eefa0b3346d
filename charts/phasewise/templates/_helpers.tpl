{{- define "phasewise.name" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* For what is not in a namespace: two releases of one name in two namespaces must not share it. */}}
{{- define "phasewise.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "phasewise.name" .) -}}
{{- end -}}

{{/* The same for kinds whose names may hold no colon. */}}
{{- define "phasewise.clusterDnsName" -}}
{{- printf "%s.%s" (include "phasewise.name" .) .Release.Namespace -}}
{{- end -}}

{{/* The role that each service's routers are bound to. */}}
{{- define "phasewise.routerRole" -}}
{{- printf "%s:router" (include "phasewise.clusterName" .) -}}
{{- end -}}

{{- define "phasewise.byTheOperator" -}}
- name: by-the-operator
  expression: request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "phasewise.name" . }}'
{{- end -}}

{{/* CEL: whether an object has the label of what Phasewise makes. */}}
{{- define "phasewise.isOurs" -}}
(has({{ . }}.metadata.labels) && {{ . }}.metadata.labels.exists(k, k == 'app.kubernetes.io/managed-by' && {{ . }}.metadata.labels[k] == 'phasewise'))
{{- end -}}

{{- define "phasewise.selector" -}}
app.kubernetes.io/name: phasewise-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "phasewise.labels" -}}
{{ include "phasewise.selector" . }}
app.kubernetes.io/part-of: phasewise
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "phasewise.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .appVersion) -}}
{{- end -}}
{{- end -}}
