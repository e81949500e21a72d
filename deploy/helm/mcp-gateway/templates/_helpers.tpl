{{- define "mcp-gateway.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mcp-gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "mcp-gateway.redisSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end -}}

{{- define "mcp-gateway.about" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The configuration: what the values say, with the Redis and the names that follow from the other values. */ -}}
{{- define "mcp-gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $name := include "mcp-gateway.name" . -}}
{{- if not $config.upstreams -}}
{{- fail "config.upstreams names no server: --set config.upstreams.time=http://time:9001/mcp, or a file of values" -}}
{{- end -}}
{{- $cache := deepCopy (default dict $config.cache) -}}
{{- if and .Values.redis.enabled .Values.redis.url -}}
{{- fail "redis.url is for a Redis of your own: set redis.enabled to false, too" -}}
{{- end -}}
{{- if .Values.redis.enabled -}}
{{- $_ := set $cache "redis" (printf "redis://%s-redis:6379/0" $name) -}}
{{- else if .Values.redis.url -}}
{{- $_ := set $cache "redis" .Values.redis.url -}}
{{- else if and (not $cache.redis) (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) -}}
{{- fail "more than one gateway needs a Redis to share: set redis.enabled, redis.url or config.cache.redis" -}}
{{- end -}}
{{- if $cache -}}
{{- $_ := set $config "cache" $cache -}}
{{- end -}}
{{- $hosts := concat (list $name (printf "%s.*" $name)) (default list $config.hosts) -}}
{{- if .Values.ingress.enabled -}}
{{- $hosts = append $hosts .Values.ingress.host -}}
{{- end -}}
{{- $_ := set $config "hosts" (uniq $hosts) -}}
{{- toYaml $config -}}
{{- end -}}
