{{- define "octavo.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* 50 characters leave room for the longest suffix, so that nothing is longer than 63. */}}
{{- define "octavo.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "octavo.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "octavo.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Selectors are immutable, so they hold nothing that an upgrade changes. */}}
{{- define "octavo.selectorLabels" -}}
app.kubernetes.io/name: {{ include "octavo.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: octavo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* (dict "image" .Values.image "default" .Chart.AppVersion) */}}
{{- define "octavo.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .default .image.tag) }}
{{- end }}
{{- end }}

{{- /* As a JSON list, empty where all namespaces are watched. */}}
{{- define "octavo.watchNamespaces" -}}
{{- if .Values.clusterWide }}
{{- if .Values.watchNamespaces }}
{{- fail "clusterWide watches all namespaces, so watchNamespaces must be empty: set one of the two" }}
{{- end }}
{{- list | toJson }}
{{- else }}
{{- default (list .Release.Namespace) .Values.watchNamespaces | uniq | sortAlpha | toJson }}
{{- end }}
{{- end }}

{{- /* Where the ServingDeployment of NOTES and `helm test` is. */}}
{{- define "octavo.testNamespace" -}}
{{- if .Values.test.namespace }}
{{- .Values.test.namespace }}
{{- else }}
{{- first (default (list .Release.Namespace) (include "octavo.watchNamespaces" . | fromJsonArray)) }}
{{- end }}
{{- end }}
