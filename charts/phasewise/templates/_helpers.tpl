{{- define "phasewise.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* For what is not in a namespace: two releases of one name in two namespaces must not share it. */}}
{{- define "phasewise.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "phasewise.name" .) -}}
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
{{- printf "%s:%s" .image.repository (.image.tag | default .appVersion) -}}
{{- end -}}
